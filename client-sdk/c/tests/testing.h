/* What the tests share: checks, and a real daemon that a test starts, stops and kills. */
#ifndef CLAD_TESTING_H
#define CLAD_TESTING_H

#include <arpa/inet.h>
#include <clad.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FAIL(...)                                                                                  \
  do {                                                                                             \
    fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                \
    fprintf(stderr, __VA_ARGS__);                                                                  \
    fprintf(stderr, " (last error: %s)\n", clad_error_text());                                     \
    exit(1);                                                                                       \
  } while (0)
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) FAIL("not so: %s", #condition);                                              \
  } while (0)
#define IS(call, wanted)                                                                           \
  do {                                                                                             \
    int is_status = (int)(call);                                                                   \
    if (is_status != (int)(wanted))                                                                \
      FAIL("%s is %s, not %s", #call, clad_status_name(is_status), clad_status_name(wanted));      \
  } while (0)
#define OK(call) IS(call, CLAD_OK)

/* Longer than anything takes that is not broken. */
#define LONG_MS 30000

struct daemon {
  char dir[256];
  char unix_address[320];
  char shm_address[320];
  char tcp_address[64];
  const char *policy;
  /* Further settings, KEY=VALUE, up to a NULL. */
  const char *settings[8];
  int port;
  pid_t pid;
};

static inline uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static inline void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) {
  }
}

static inline int free_port(void) {
  struct sockaddr_in at;
  socklen_t len = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  memset(&at, 0, sizeof at);
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
  CHECK(getsockname(fd, (struct sockaddr *)&at, &len) == 0);
  close(fd);
  return ntohs(at.sin_port);
}

static inline void daemon_addresses(struct daemon *d) {
  snprintf(d->unix_address, sizeof d->unix_address, "unix://%s/clad-data/clad.sock", d->dir);
  snprintf(d->shm_address, sizeof d->shm_address, "shm://%s/clad-data/clad.sock", d->dir);
}

/* A daemon that does not run yet, in a folder of its own. */
static inline struct daemon daemon_new(void) {
  struct daemon d;
  const char *parent = getenv("CLAD_TEST_DIR");
  memset(&d, 0, sizeof d);
  CHECK(getenv("CLAD_BIN") != NULL && parent != NULL);
  snprintf(d.dir, sizeof d.dir, "%s/XXXXXX", parent);
  CHECK(mkdtemp(d.dir) != NULL);
  d.port = free_port();
  d.policy = "group_commit";
  daemon_addresses(&d);
  snprintf(d.tcp_address, sizeof d.tcp_address, "tcp://127.0.0.1:%d", d.port);
  return d;
}

static inline int listens(int family, const void *at, socklen_t len) {
  int fd = socket(family, SOCK_STREAM, 0);
  int connected = connect(fd, (const struct sockaddr *)at, len);
  close(fd);
  return connected == 0;
}

/* Starts it and waits until it listens. */
static inline void daemon_start(struct daemon *d) {
  char tcp[64], policy[64], log[300];
  struct sockaddr_un at;
  struct sockaddr_in at_tcp;
  int tries;
  snprintf(tcp, sizeof tcp, "ingest.tcp.listen=127.0.0.1:%d", d->port);
  snprintf(policy, sizeof policy, "journal.durability=%s", d->policy);
  snprintf(log, sizeof log, "%s/log", d->dir);
  d->pid = fork();
  CHECK(d->pid >= 0);
  if (d->pid == 0) {
    const char *words[40] = {getenv("CLAD_BIN"), "run"};
    const char *common[] = {tcp, policy, "ingest.grpc.listen=", "metrics.listen=", "access.read_group=",
                            "journal.power_loss_protected=true", "journal.segment_bytes=16MiB"};
    size_t at_setting, count = 2;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(fd, 1);
    dup2(fd, 2);
    if (chdir(d->dir) != 0) _exit(126);
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("STATE_DIRECTORY");
    unsetenv("CLAD_SERVER");
    unsetenv("LD_LIBRARY_PATH");
    for (at_setting = 0; at_setting < sizeof common / sizeof common[0]; at_setting++) {
      words[count++] = "--set";
      words[count++] = common[at_setting];
    }
    for (at_setting = 0; d->settings[at_setting] != NULL; at_setting++) {
      words[count++] = "--set";
      words[count++] = d->settings[at_setting];
    }
    execv(words[0], (char **)words);
    _exit(127);
  }
  memset(&at, 0, sizeof at);
  at.sun_family = AF_UNIX;
  CHECK(strlen(d->unix_address + 7) < sizeof at.sun_path);
  strcpy(at.sun_path, d->unix_address + 7);
  memset(&at_tcp, 0, sizeof at_tcp);
  at_tcp.sin_family = AF_INET;
  at_tcp.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at_tcp.sin_port = htons((uint16_t)d->port);
  for (tries = 0; tries < 3000; tries++) {
    if (listens(AF_UNIX, &at, sizeof at) && listens(AF_INET, &at_tcp, sizeof at_tcp)) return;
    sleep_ms(10);
  }
  FAIL("the daemon in %s does not listen; see the file log there", d->dir);
}

/* Returns when each of its threads has stopped: one that runs may still answer. */
static inline void daemon_stop(struct daemon *d) {
  int status;
  CHECK(kill(d->pid, SIGSTOP) == 0);
  CHECK(waitpid(d->pid, &status, WUNTRACED) == d->pid && WIFSTOPPED(status));
}

static inline void daemon_kill(struct daemon *d) {
  if (d->pid > 0) {
    kill(d->pid, SIGKILL);
    waitpid(d->pid, NULL, 0);
    d->pid = 0;
  }
}

/* Ends a daemon and removes its folder: the test has passed. */
static inline void daemon_free(struct daemon *d) {
  char command[300];
  daemon_kill(d);
  snprintf(command, sizeof command, "rm -rf '%s'", d->dir);
  CHECK(system(command) == 0);
}

/* A producer of a daemon; `edit` may be NULL. */
static inline clad_producer *producer_at(const char *address, const char *component) {
  clad_options options = CLAD_OPTIONS_INIT;
  clad_producer *producer = NULL;
  options.address = address;
  options.component = component;
  options.backoff_first_ms = 1;
  options.backoff_max_ms = 20;
  OK(clad_connect(&options, &producer));
  CHECK(producer != NULL);
  return producer;
}

/* Records in the log: those with this body; NULL: all that are no report of drops. */
static inline uint64_t stored(const struct daemon *d, const char *body) {
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_reader *reader = NULL;
  clad_status status;
  uint64_t count = 0;
  options.address = d->unix_address;
  OK(clad_reader_open(&options, &reader));
  while ((status = clad_reader_next(reader, LONG_MS, &event)) == CLAD_OK) {
    CHECK(event.kind == CLAD_EVENT_RECORD);
    if (strcmp(event.event_name, "clad.records_dropped") == 0) continue;
    count += body == NULL || strcmp((const char *)event.body.data, body) == 0;
  }
  IS(status, CLAD_END);
  OK(clad_reader_free(reader));
  return count;
}

static inline clad_stats stats_of(clad_producer *producer) {
  clad_stats stats = CLAD_STATS_INIT;
  OK(clad_get_stats(producer, &stats));
  return stats;
}

struct test {
  const char *name;
  void (*run)(void);
};

/* `PROGRAM --list` names the tests, `PROGRAM NAME...` runs those. */
static inline int run_tests(const struct test *tests, int argc, char **argv) {
  int at, ran = 0;
  signal(SIGPIPE, SIG_DFL);
  for (; tests->name != NULL; tests++) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) puts(tests->name);
    for (at = 1; at < argc; at++) {
      if (strcmp(argv[at], tests->name) == 0) {
        tests->run();
        printf("passed %s\n", tests->name);
        ran++;
      }
    }
  }
  return argc == 2 && strcmp(argv[1], "--list") == 0 ? 0 : ran == argc - 1 && ran > 0 ? 0 : 2;
}

#endif
