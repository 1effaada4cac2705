// SPDX-License-Identifier: Apache-2.0
// driver_test [--prefix P] [NAME...]: runs the named tests, or all that fit the driver's mode, one process each, and looks
// after each whether anything is left.
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/kernel/user/lab.h"

static const struct test* const kTests[] = {kBasicTests, kIsolationTests, kAbuseTests, kRefusalTests,
                                            kFuzzTests,  kStormTests,     kLastTests};
enum { kTimeLimitS = 200 };  // an emulated CPU under KASAN on a busy machine is slow

static const char* what_is_left(void) {
  static char text[256];
  const struct board_statistics now = statistics();
  const long pins = read_number("/proc/driver/gdrdrv/nv_get_pages_refcount");
  if (now.pages_used == 0 && now.bindings == 0 && now.revocable_tables == 0 && now.persistent_tables == 0 &&
      now.puts_in_callback == 0 && now.unknown_puts == 0 && pins <= 0)
    return NULL;
  snprintf(text, sizeof text,
           "left behind: %u pages, %u bindings, %u revocable and %u persistent tables, driver counts %ld; "
           "%u puts in a callback, %u of unknown tables",
           now.pages_used, now.bindings, now.revocable_tables, now.persistent_tables, pins, now.puts_in_callback,
           now.unknown_puts);
  return text;
}

static bool run(const struct test* test, const char* prefix) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(kTimeLimitS);
    test->body();
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) FAIL("waitpid");
  put_mock_back();
  const char* left = what_is_left();
  if (status == 0 && left == NULL) {
    printf("ok %s%s\n", prefix, test->name);
    return true;
  }
  printf("not ok %s%s: ", prefix, test->name);
  if (WIFSIGNALED(status)) printf("signal %d%s", WTERMSIG(status), left ? "; " : "\n");
  else if (status != 0) printf("a check failed%s", left ? "; " : "\n");
  if (left != NULL) printf("%s\n", left);
  return false;
}

static bool is_named(const struct test* test, char** names) {
  for (; *names != NULL; ++names)
    if (strcmp(*names, test->name) == 0) return true;
  return false;
}

int main(int count, char** arguments) {
  char** names = arguments + 1;
  const char* prefix = "";
  if (count > 2 && strcmp(names[0], "--prefix") == 0) {
    prefix = names[1];
    names += 2;
  }
  const bool persistent = driver_is_persistent();
  int failed = 0, ran = 0;
  for (size_t group = 0; group < sizeof kTests / sizeof *kTests; ++group) {
    for (const struct test* test = kTests[group]; test->name != NULL; ++test) {
      if (*names != NULL && !is_named(test, names)) continue;
      if (test->needs == (persistent ? kRevocable : kPersistent)) continue;
      failed += !run(test, prefix);
      ++ran;
    }
  }
  if (ran == 0) printf("not ok %sselection: no such test in this mode\n", prefix);
  return failed != 0 || ran == 0;
}
