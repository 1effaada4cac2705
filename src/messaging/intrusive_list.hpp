// SPDX-License-Identifier: Apache-2.0
// Doubly linked list through a node in each element: no allocation, removal from the middle in constant time.
//
// Owns: nothing; an element is in at most one list for each of its nodes. Threads: those of its user. Errors: none.
#pragma once

namespace pl::messaging {

template <class T>
struct list_node {
  T* previous = nullptr;
  T* next = nullptr;
  bool is_linked = false;
};

template <class T, list_node<T> T::*Node>
class intrusive_list {
 public:
  bool is_empty() const noexcept { return first_ == nullptr; }
  T* first() const noexcept { return first_; }
  static T* next(const T* entry) noexcept { return (entry->*Node).next; }

  void push_back(T* element) noexcept {
    auto& node = element->*Node;
    node = {last_, nullptr, true};
    (last_ == nullptr ? first_ : (last_->*Node).next) = element;
    last_ = element;
  }
  void remove(T* element) noexcept {
    auto& node = element->*Node;
    if (!node.is_linked) return;
    (node.previous == nullptr ? first_ : (node.previous->*Node).next) = node.next;
    (node.next == nullptr ? last_ : (node.next->*Node).previous) = node.previous;
    node = {};
  }
  T* pop_front() noexcept {
    T* element = first_;
    if (element != nullptr) remove(element);
    return element;
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

}  // namespace pl::messaging
