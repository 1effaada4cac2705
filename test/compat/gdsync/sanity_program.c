/* SPDX-License-Identifier: Apache-2.0
 * A program as others write them to libgdsync: streams and the CPU hand each other words, in pinned memory and in GPU memory
 * that is mapped for the CPU. Exit code 0: streams kept their order, stood where they should, and every word was right. */
#include <errno.h>
#include <gdsync.h>
#include <string.h>
#include <unistd.h>

#include "test/compat/gdsync/program.h"

#define ROUNDS 40
#define VALUES 16
#define BYTES 65536

static uint32_t peek(const void* memory, unsigned index) { return *((const volatile uint32_t*)memory + index); }
static void poke(void* memory, unsigned index, uint32_t value) {
  *((volatile uint32_t*)memory + index) = value;
  __sync_synchronize();
}
static void wait_for(const void* memory, unsigned index, uint32_t value) {
  while (peek(memory, index) != value) usleep(10);
}

static void add_write(gds_descriptor_t* all, size_t* count, uint32_t* word, uint32_t value, int type) {
  all[*count].tag = GDS_TAG_WRITE_VALUE32;
  CHECK(gds_prepare_write_value32(&all[*count].write32, word, value, type | GDS_WRITE_PRE_BARRIER) == 0);
  ++*count;
}
static void add_wait(gds_descriptor_t* all, size_t* count, uint32_t* word, uint32_t value, gds_wait_cond_flag_t cond,
                     int flags) {
  all[*count].tag = GDS_TAG_WAIT_VALUE32;
  CHECK(gds_prepare_wait_value32(&all[*count].wait32, word, value, cond, flags) == 0);
  ++*count;
}

/* Words: 0 signal, 1 done, 2 where the stream is, 16.. values. The stream must stand at both waits, and go on behind them.
 */
static void keep_order(CUstream stream, int type) {
  gds_mem_desc_t memory;
  uint32_t values[VALUES], *gpu;
  unsigned round, i;
  memset(&memory, 0, sizeof memory);
  CHECK(gds_alloc_mapped_memory(&memory, BYTES, type) == 0);
  CHECK(memory.h_ptr != NULL && memory.d_ptr != 0 && memory.alloc_size == BYTES && memory.flags == type);
  CHECK((memory.bar_ptr != NULL) == (type == GDS_MEMORY_GPU));
  memset(memory.h_ptr, 0, BYTES);
  gpu = (uint32_t*)(type == GDS_MEMORY_GPU ? (void*)(uintptr_t)memory.d_ptr : memory.h_ptr);
  for (i = 0; i < VALUES; ++i) values[i] = i + 1;
  for (round = 1; round <= ROUNDS; ++round) {
    gds_descriptor_t all[8];
    size_t count = 0;
    add_write(all, &count, gpu + 2, 0xa000 | round, type);
    add_wait(all, &count, gpu, round, GDS_WAIT_COND_EQ, type | GDS_WAIT_POST_FLUSH);
    add_write(all, &count, gpu + 2, 0xb000 | round, type);
    all[count].tag = GDS_TAG_WRITE_MEMORY;
    CHECK(gds_prepare_write_memory(&all[count].writemem, (uint8_t*)(gpu + 16), (const uint8_t*)values, sizeof values,
                                   type) == 0);
    ++count;
    add_wait(all, &count, gpu + 16, 0, GDS_WAIT_COND_EQ, type);
    add_write(all, &count, gpu + 1, round, type);
    CHECK(gds_stream_post_descriptors(stream, count, all, 0) == 0);
    values[1] = 77; /* it has been read */
    wait_for(memory.h_ptr, 2, 0xa000 | round);
    CHECK(peek(memory.h_ptr, 1) == round - 1 && peek(memory.h_ptr, 16 + 1) == (round == 1 ? 0u : 2u));
    CHECK(cuStreamQuery(stream) != 0);
    poke(memory.h_ptr, 0, round);
    wait_for(memory.h_ptr, 2, 0xb000 | round);
    wait_for(memory.h_ptr, 16 + VALUES - 1, VALUES);
    CHECK(peek(memory.h_ptr, 1) == round - 1 && cuStreamQuery(stream) != 0);
    for (i = 0; i < VALUES; ++i) CHECK(peek(memory.h_ptr, 16 + i) == i + 1);
    poke(memory.h_ptr, 16 + VALUES - 1, 0);
    poke(memory.h_ptr, 16, 0);
    wait_for(memory.h_ptr, 1, round);
    CHECK(cuStreamSynchronize(stream) == 0);
    values[1] = 2;
  }
  CHECK(gds_free_mapped_memory(&memory) == 0 && memory.h_ptr == NULL);
  CHECK(gds_free_mapped_memory(&memory) == EINVAL);
}

/* The stream and gds_post_descriptors answer each other; every condition. The words are this program's own pages: nobody
 * told CUDA of them. */
static void answer(CUstream stream, int type, uint32_t* gpu) {
  gds_descriptor_t remote[8], answers_posted[8];
  size_t count = 0, answers = 0;
  add_wait(remote, &count, gpu, 7, GDS_WAIT_COND_GEQ, type);
  add_write(remote, &count, gpu + 1, 0xfffffff0u, type);
  add_wait(remote, &count, gpu + 2, 4, GDS_WAIT_COND_AND, type);
  add_write(remote, &count, gpu + 3, 5, type);
  add_wait(remote, &count, gpu + 4, 0xffffff00u, GDS_WAIT_COND_NOR, type);
  add_write(remote, &count, gpu + 5, 6, type);
  add_write(answers_posted, &answers, gpu, 9, type);
  add_wait(answers_posted, &answers, gpu + 1, 0xffffffeeu, GDS_WAIT_COND_GEQ, type); /* cyclic */
  add_write(answers_posted, &answers, gpu + 2, 12, type);
  add_wait(answers_posted, &answers, gpu + 3, 5, GDS_WAIT_COND_EQ, type);
  add_write(answers_posted, &answers, gpu + 4, 0x7f, type);
  add_wait(answers_posted, &answers, gpu + 5, 2, GDS_WAIT_COND_AND, type);
  CHECK(gds_post_descriptors(1, &(gds_descriptor_t){.tag = GDS_TAG_WRITE_VALUE32, .write32 = {gpu + 4, 0xff, type}}, 0) ==
        0);
  CHECK(gds_stream_post_descriptors(stream, count, remote, 0) == 0);
  CHECK(gds_post_descriptors(answers, answers_posted, 0) == 0);
  CHECK(cuStreamSynchronize(stream) == 0);
}

static void misuse(CUstream stream) {
  static uint32_t words[4];
  gds_descriptor_t all[2];
  gds_mem_desc_t memory;
  gds_mlx5_dword_wait_info_t info;
  struct gds_qp pair;
  int value = -1;
  memset(&memory, 0, sizeof memory);
  memset(&pair, 0, sizeof pair);
  CHECK(gds_query_param(GDS_NUM_PARAMS, &value) == EINVAL && gds_query_param(GDS_PARAM_VERSION, NULL) == EINVAL &&
        value == -1);
  CHECK(gds_alloc_mapped_memory(NULL, 8, GDS_MEMORY_GPU) == EINVAL &&
        gds_alloc_mapped_memory(&memory, 0, GDS_MEMORY_GPU) == EINVAL);
  CHECK(gds_alloc_mapped_memory(&memory, 8, GDS_MEMORY_IO) == EINVAL && gds_free_mapped_memory(NULL) == EINVAL);
  CHECK(gds_prepare_write_value32(NULL, words, 1, GDS_MEMORY_HOST) == EINVAL);
  CHECK(gds_prepare_write_value32(&all[0].write32, words, 1, 0) == EINVAL);
  CHECK(gds_prepare_write_value32(&all[0].write32, words, 1, GDS_MEMORY_HOST | GDS_MEMORY_GPU) == EINVAL);
  CHECK(gds_prepare_write_value32(&all[0].write32, (uint32_t*)((char*)words + 2), 1, GDS_MEMORY_HOST) == EINVAL);
  CHECK(gds_prepare_wait_value32(&all[0].wait32, words, 1, (gds_wait_cond_flag_t)4, GDS_MEMORY_HOST) == EINVAL);
  CHECK(gds_prepare_write_memory(&all[0].writemem, (uint8_t*)words, (uint8_t*)words, 6, GDS_MEMORY_HOST) == EINVAL);
  CHECK(gds_prepare_write_memory(&all[0].writemem, (uint8_t*)words, (uint8_t*)words, 1028, GDS_MEMORY_HOST) == EINVAL);
  /* One that is wrong stops all. */
  all[0].tag = GDS_TAG_WRITE_VALUE32;
  CHECK(gds_prepare_write_value32(&all[0].write32, words, 5, GDS_MEMORY_HOST) == 0);
  all[1].tag = GDS_TAG_SEND;
  all[1].send = NULL;
  CHECK(gds_stream_post_descriptors(stream, 2, all, 0) == PL_WITHOUT_PAIR &&
        gds_post_descriptors(2, all, 0) == PL_WITHOUT_PAIR);
  all[1].tag = (gds_tag_t)9;
  CHECK(gds_stream_post_descriptors(stream, 2, all, 0) == EINVAL && gds_post_descriptors(2, all, 1) == EINVAL);
  CHECK(gds_stream_post_descriptors(stream, 1, NULL, 0) == EINVAL && gds_stream_post_descriptors(stream, 0, NULL, 0) == 0);
  CHECK(cuStreamSynchronize(stream) == 0 && words[0] == 0);
  CHECK(gds_mlx5_get_dword_wait_info(words, 3, GDS_MEMORY_HOST, &info) == 0 && info.ptr != NULL && info.value == 3);
  CHECK(gds_mlx5_get_dword_wait_info(words, 3, 0, &info) == EINVAL);
  errno = 0;
  CHECK(gds_create_qp(NULL, NULL, NULL, 0, GDS_CREATE_QP_DEFAULT) == NULL && errno == PL_WITHOUT_PAIR);
  CHECK(gds_destroy_qp(NULL) == PL_WITHOUT_PAIR && gds_post_send(NULL, NULL, NULL) == PL_WITHOUT_PAIR);
  CHECK(gds_stream_wait_cq(stream, NULL, 0) == PL_WITHOUT_PAIR &&
        gds_stream_queue_send(stream, NULL, NULL, NULL) == PL_WITHOUT_PAIR);
}

/* A refused call says so on stderr, with its name. */
static void tell(void) {
  char line[512];
  ssize_t length;
  int ends[2], kept = dup(2);
  CHECK(pipe(ends) == 0 && dup2(ends[1], 2) == 2);
  gds_destroy_qp(NULL);
  CHECK(dup2(kept, 2) == 2);
  length = read(ends[0], line, sizeof line - 1);
  CHECK(length > 0);
  line[length] = 0;
  CHECK(strstr(line, "gds_destroy_qp: ") != NULL && strchr(line, '\n') == line + length - 1);
}

int main(void) {
  CUcontext context = NULL;
  CUstream stream = NULL;
  gds_mem_desc_t memory;
  int version = 0;
  uint32_t* own = malloc(256);
  alarm(60);
  memset(&memory, 0, sizeof memory);
  CHECK(gds_query_param(GDS_PARAM_VERSION, &version) == 0 && GDS_API_VERSION_COMPATIBLE((unsigned)version));
  CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
  CHECK(cuStreamCreate(&stream, 1) == 0);
  keep_order(stream, GDS_MEMORY_HOST);
  keep_order(stream, GDS_MEMORY_GPU);
  memset(own, 0, 256);
  answer(stream, GDS_MEMORY_HOST, own);
  CHECK(gds_alloc_mapped_memory(&memory, 4096, GDS_MEMORY_GPU) == 0);
  memset(memory.h_ptr, 0, 4096);
  answer(stream, GDS_MEMORY_GPU, (uint32_t*)(uintptr_t)memory.d_ptr + 1000);
  CHECK(gds_post_descriptors(
            1,
            &(gds_descriptor_t){.tag = GDS_TAG_WRITE_VALUE32,
                                .write32 = {(uint32_t*)(uintptr_t)(memory.d_ptr + (1 << 30)), 1, GDS_MEMORY_GPU}},
            0) == EFAULT);
  CHECK(gds_post_descriptors(1,
                             &(gds_descriptor_t){.tag = GDS_TAG_WRITE_VALUE32,
                                                 .write32 = {(uint32_t*)(uintptr_t)memory.d_ptr, 1, GDS_MEMORY_HOST}},
                             0) == EFAULT);
  CHECK(gds_free_mapped_memory(&memory) == 0);
  misuse(stream);
  tell();
  free(own);
  return 0;
}
