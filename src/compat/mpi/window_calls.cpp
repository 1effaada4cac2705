// SPDX-License-Identifier: Apache-2.0
// MPI functions that synchronize windows: MPI's own, plus what direct targets, public copies and stand-ins need.
#include "compat/mpi/windows.hpp"

using namespace pl::mpi;

namespace {

// `work` gets the window, if there is anything to do beside MPI's own call.
template <class Call, class Work>
int synchronize(MPI_Win handle, Call call, Work work) {
  const auto known = windows().find(handle);
  if (known == nullptr) [[likely]]
    return call();
  return guarded_window(handle, [&] { return work(*known); });
}

// MPI's call ends operations at `target`, or at all.
template <class Call>
int end_operations(MPI_Win handle, int target, Call call) {
  return synchronize(handle, call, [&](window& known) {
    const auto begun = known.begun(target);  // those that another thread begins now are not ended by this call
    const int code = call();
    return code == MPI_SUCCESS ? raise_on(handle, known.finish(begun)) : code;
  });
}

constexpr int kAll = -1;

// A target of a dynamic window may hold device memory and memory that MPI reaches, so it has a lock of ours and one of
// MPI's. Ours is taken first and given back last. MPI's is then free, and no two ranks wait for each other.
template <class Call, class Lock>
int lock_dynamic(window& known, int target, Call call, Lock lock) {
  if (known.has_locked(target)) return call();  // an error, which MPI reports
  lock();
  const int code = call();
  if (code != MPI_SUCCESS) known.unlock(target);
  return code;
}

template <class Call>
int lock_all_dynamic(window& known, int assertion, Call call) {
  for (int target = 0; target < known.ranks(); ++target)
    if (known.has_locked(target)) return call();
  for (int target = 0; target < known.ranks(); ++target) known.lock(MPI_LOCK_SHARED, target, assertion);
  known.lock_all(assertion);
  const int code = call();
  if (code != MPI_SUCCESS) known.unlock_all();
  return code;
}

}  // namespace

int MPI_Win_fence(int assertion, MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_fence(assertion, handle); };
  return synchronize(handle, call, [&](window& known) {
    if (const int code = known.publish(); code != MPI_SUCCESS) return raise_on(handle, code);
    if (const int code = call(); code != MPI_SUCCESS) return code;
    if (known.has_direct()) known.fence(assertion);
    const int code = known.finish_all();
    return raise_on(handle, code == MPI_SUCCESS ? known.adopt() : code);
  });
}

int MPI_Win_post(MPI_Group origins, int assertion, MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_post(origins, assertion, handle); };
  return synchronize(handle, call, [&](window& known) {
    if (const int code = known.publish(); code != MPI_SUCCESS) return raise_on(handle, code);
    if (const int code = call(); code != MPI_SUCCESS) return code;
    return known.has_direct() ? raise_on(handle, known.post(origins)) : MPI_SUCCESS;
  });
}

int MPI_Win_start(MPI_Group targets, int assertion, MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_start(targets, assertion, handle); };
  return synchronize(handle, call, [&](window& known) {
    if (const int code = call(); code != MPI_SUCCESS) return code;
    return known.has_direct() ? raise_on(handle, known.start(targets)) : MPI_SUCCESS;
  });
}

int MPI_Win_complete(MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_complete(handle); };
  return synchronize(handle, call, [&](window& known) {
    if (const int code = call(); code != MPI_SUCCESS) return code;
    const int code = known.has_direct() ? known.complete() : MPI_SUCCESS;
    const int finished = known.finish_all();
    return raise_on(handle, code == MPI_SUCCESS ? finished : code);
  });
}

int MPI_Win_wait(MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_wait(handle); };
  return synchronize(handle, call, [&](window& known) {
    if (const int code = known.has_direct() ? known.wait() : MPI_SUCCESS; code != MPI_SUCCESS) return raise_on(handle, code);
    if (const int code = call(); code != MPI_SUCCESS) return code;
    return raise_on(handle, known.adopt());
  });
}

int MPI_Win_test(MPI_Win handle, int* flag) {
  const auto call = [&] { return PMPI_Win_test(handle, flag); };
  return synchronize(handle, call, [&](window& known) {
    if (known.has_direct() && !known.test()) return *flag = 0, MPI_SUCCESS;
    if (const int code = call(); code != MPI_SUCCESS || *flag == 0) return code;
    const int code = known.has_direct() ? known.wait() : MPI_SUCCESS;
    return raise_on(handle, code == MPI_SUCCESS ? known.adopt() : code);
  });
}

int MPI_Win_lock(int kind, int target, int assertion, MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_lock(kind, target, assertion, handle); };
  return synchronize(handle, call, [&](window& known) {
    if (known.is_dynamic()) return lock_dynamic(known, target, call, [&] { known.lock(kind, target, assertion); });
    // MPI's own lock of a direct target protects nothing, but MPI checks the calls by it.
    const bool is_direct = known.direct_target(target) != nullptr;
    const int code = is_direct ? PMPI_Win_lock(kind, target, assertion | MPI_MODE_NOCHECK, handle) : call();
    if (code != MPI_SUCCESS) return code;
    if (known.has_direct()) known.lock(kind, target, assertion);
    return target == known.rank ? raise_on(handle, known.adopt()) : code;
  });
}

int MPI_Win_lock_all(int assertion, MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_lock_all(assertion, handle); };
  return synchronize(handle, call, [&](window& known) {
    if (known.is_dynamic()) return lock_all_dynamic(known, assertion, call);
    if (const int code = call(); code != MPI_SUCCESS) return code;
    if (known.has_direct()) known.lock_all(assertion);
    return raise_on(handle, known.adopt());
  });
}

int MPI_Win_unlock(int target, MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_unlock(target, handle); };
  return synchronize(handle, call, [&](window& known) {
    const int published = target == known.rank ? known.publish() : MPI_SUCCESS;
    if (const int code = call(); code != MPI_SUCCESS) return code;
    if (known.has_direct()) known.unlock(target);
    const int code = known.finish(target);
    return raise_on(handle, code == MPI_SUCCESS ? published : code);
  });
}

int MPI_Win_unlock_all(MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_unlock_all(handle); };
  return synchronize(handle, call, [&](window& known) {
    const int published = known.publish();
    if (const int code = call(); code != MPI_SUCCESS) return code;
    if (known.has_direct()) known.unlock_all();
    const int code = known.finish_all();
    return raise_on(handle, code == MPI_SUCCESS ? published : code);
  });
}

int MPI_Win_flush(int target, MPI_Win handle) {
  return end_operations(handle, target, [&] { return PMPI_Win_flush(target, handle); });
}

int MPI_Win_flush_all(MPI_Win handle) {
  return end_operations(handle, kAll, [&] { return PMPI_Win_flush_all(handle); });
}

int MPI_Win_flush_local(int target, MPI_Win handle) {
  return end_operations(handle, target, [&] { return PMPI_Win_flush_local(target, handle); });
}

int MPI_Win_flush_local_all(MPI_Win handle) {
  return end_operations(handle, kAll, [&] { return PMPI_Win_flush_local_all(handle); });
}

int MPI_Win_sync(MPI_Win handle) {
  const auto call = [&] { return PMPI_Win_sync(handle); };
  return synchronize(handle, call, [&](window& known) {
    if (const int code = known.publish(); code != MPI_SUCCESS) return raise_on(handle, code);
    if (const int code = call(); code != MPI_SUCCESS) return code;
    return raise_on(handle, known.adopt());
  });
}
