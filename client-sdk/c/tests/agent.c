/* The agent of the chaos harness: a client in a process of its own, which can be killed.
 *
 *   AGENT ADDRESS PRODUCER_ID COMPONENT EPOCH MODE
 *
 * Built with `cc agent.c -lclad -lpthread`, or with libclad.a and `-lpthread -ldl -lm`. A line for each outcome goes to
 * stdout; the end of stdin ends it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <clad.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PENDING = 4096, THREADS = 2, PAUSE_MS = 5, END_MS = 60000 };

/* In turn: all of them for `mixed`, else the two that no kill can take. */
static const uint32_t levels[] = {CLAD_LEVEL_NONE, CLAD_LEVEL_RECEIVED, CLAD_LEVEL_WRITTEN, CLAD_LEVEL_DURABLE};

struct pending {
  char name[40];
  uint32_t level;
  clad_ticket *ticket;
};

struct work {
  clad_producer *producer;
  int thread;
  uint64_t next;
  int keeps;
  int mixed;
};

static pthread_mutex_t lines = PTHREAD_MUTEX_INITIALIZER;
static volatile int stopped;

static void say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&lines);
  vprintf(format, arguments);
  fflush(stdout);
  pthread_mutex_unlock(&lines);
  va_end(arguments);
}

static void sleep_ms(long ms) {
  struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* The line of an error. */
static void failed(const struct work *work, const char *name) {
  if (!work->keeps && !clad_error_maybe_written())
    say("never %s\n", name);
  else
    say("error %s: %s\n", name, clad_error_text());
}

/* Looks at a ticket, for as long as is said; true if it has its outcome. */
static int settled(const struct work *work, struct pending *pending, uint64_t timeout_ms) {
  clad_receipt receipt;
  clad_status status = clad_ticket_wait(pending->ticket, timeout_ms, &receipt);
  if (status == CLAD_PENDING) return 0;
  if (status == CLAD_OK && pending->level < CLAD_LEVEL_WRITTEN)
    say("sent %s\n", pending->name);
  else if (status == CLAD_OK && receipt.has_offset)
    say("receipt %s %" PRIu64 "\n", pending->name, receipt.first_offset);
  else if (status == CLAD_OK)
    say("receipt %s -\n", pending->name);
  else
    failed(work, pending->name);
  clad_ticket_free(pending->ticket);
  return 1;
}

static void *append(void *argument) {
  struct work *work = (struct work *)argument;
  struct pending *pending = (struct pending *)calloc(MAX_PENDING, sizeof *pending);
  size_t count = 0, at, left;
  uint64_t number;
  for (number = work->next; pending != NULL && !stopped; number++) {
    char body[40];
    clad_record record = clad_text(work->keeps ? 0 : number % 2 == 0 ? CLAD_INFO : CLAD_WARN, body);
    clad_call call = CLAD_CALL_INIT;
    struct pending *last = &pending[count];
    record.time_unix_nano = 1;
    call.level = last->level = work->mixed ? levels[number % 4] : levels[2 + number % 2];
    if (work->keeps) {
      snprintf(body, sizeof body, "%" PRIu64, number);
      snprintf(last->name, sizeof last->name, "%" PRIu64, number);
    } else {
      snprintf(body, sizeof body, "%d %" PRIu64, work->thread, number);
      snprintf(last->name, sizeof last->name, "%d:%" PRIu64, work->thread, number);
    }
    if (clad_append(work->producer, &record, 1, &call, &last->ticket) == CLAD_OK)
      count++;
    else
      failed(work, last->name);
    for (at = 0, left = 0; at < count; at++) {
      if (!settled(work, &pending[at], count == MAX_PENDING ? 1 : 0)) pending[left++] = pending[at];
    }
    count = left;
    while (count == MAX_PENDING && settled(work, &pending[0], END_MS))
      memmove(pending, pending + 1, --count * sizeof *pending);
    if (work->keeps && number % 8 == 7) sleep_ms(PAUSE_MS);
    if (!work->keeps && number % 64 == 63) sleep_ms(40);
  }
  for (at = 0; at < count; at++) {
    if (!settled(work, &pending[at], END_MS)) say("error %s: no outcome\n", pending[at].name);
  }
  free(pending);
  return NULL;
}

static void *wait_for_the_end(void *unused) {
  char bytes[256];
  while (read(0, bytes, sizeof bytes) > 0) {
  }
  stopped = 1;
  return unused;
}

/* Reads what is durable, over every death. Its wait is short, as the end of stdin wakes no reader. */
static void follow(const char *address) {
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_reader *reader = NULL;
  clad_status status = CLAD_OK;
  options.address = address;
  options.follow = 1;
  options.level = CLAD_LEVEL_DURABLE;
  while (!stopped && clad_reader_open(&options, &reader) != CLAD_OK) sleep_ms(PAUSE_MS);
  while (!stopped && (status == CLAD_OK || status == CLAD_PENDING)) {
    status = clad_reader_next(reader, PAUSE_MS, &event);
    if (status == CLAD_OK && event.kind == CLAD_EVENT_RECORD)
      say("records %" PRIu64 " %" PRIu64 "\n", event.offset, event.end_offset - event.offset);
    else if (status == CLAD_OK && event.kind == CLAD_EVENT_GAP)
      say("error gap %" PRIu64 " %" PRIu64 "\n", event.offset, event.end_offset);
    else if (status != CLAD_OK && status != CLAD_PENDING)
      say("error %s: %s\n", clad_status_name(status), clad_error_text());
  }
  clad_reader_free(reader);
}

/* Records of a lower level may be lost with a daemon, which a flush reports. */
static void brought_home(const char *what, int mixed, clad_status status) {
  if (status != CLAD_OK && !(mixed && status == CLAD_ERR_LOST)) say("error %s: %s\n", what, clad_error_text());
}

static int id_of(const char *text, uint8_t id[16]) {
  int at;
  for (at = 0; at < 16; at++) {
    unsigned byte;
    if (sscanf(text + (size_t)at * 2, "%2x", &byte) != 1) return 0;
    id[at] = (uint8_t)byte;
  }
  return 1;
}

int main(int argc, char **argv) {
  clad_options options = CLAD_OPTIONS_INIT;
  clad_producer *producer = NULL;
  struct work work[THREADS];
  pthread_t threads[THREADS], end;
  uint8_t id[16];
  int at, count, keeps, mixed, follows;
  if (argc != 6) return 2;
  keeps = strcmp(argv[5], "keeps") == 0;
  mixed = strcmp(argv[5], "mixed") == 0;
  follows = strcmp(argv[5], "follows") == 0;
  options.address = argv[1];
  options.component = argv[3];
  options.backoff_first_ms = 1;
  options.backoff_max_ms = 20;
  if (keeps) {
    if (!id_of(argv[2], id)) return 2;
    options.producer_id = id;
    options.producer_epoch = (uint32_t)strtoul(argv[4], NULL, 10);
    options.secret = (const uint8_t *)"chaos";
    options.secret_len = 5;
    options.overload = CLAD_OVERLOAD_WAIT;
    options.wait_ms = CLAD_FOREVER;
    options.resume_level = CLAD_LEVEL_WRITTEN;
  } else if (!follows) {
    options.max_buffered_bytes = 16 * 1024;
    options.wait_ms = mixed ? 20 : 0;
    options.max_append_records = mixed ? 3 : 0; /* some are grouped */
    options.keep_severity = CLAD_WARN;
    if (strcmp(argv[5], "drops-newest") == 0)
      options.overload = CLAD_OVERLOAD_DROP_NEWEST;
    else if (strcmp(argv[5], "drops-oldest") == 0)
      options.overload = CLAD_OVERLOAD_DROP_OLDEST;
    else if (strcmp(argv[5], "drops-below") == 0)
      options.overload = CLAD_OVERLOAD_DROP_BELOW;
    else if (mixed)
      options.overload = CLAD_OVERLOAD_WAIT;
    else
      return 2;
  }
  if (pthread_create(&end, NULL, wait_for_the_end, NULL) != 0) return 1;
  if (follows) {
    follow(argv[1]);
    return 0;
  }
  while (clad_connect(&options, &producer) != CLAD_OK) {
    if (stopped) return 0;
    sleep_ms(PAUSE_MS);
  }
  count = keeps ? 1 : THREADS;
  for (at = 0; at < count; at++) {
    struct work each = {producer, at, 0, keeps, mixed};
    work[at] = each;
    if (keeps && clad_next_sequence(producer, &work[at].next) != CLAD_OK) return 1;
    if (pthread_create(&threads[at], NULL, append, &work[at]) != 0) return 1;
  }
  for (at = 0; at < count; at++) pthread_join(threads[at], NULL);
  if (!keeps) brought_home("flush", mixed, clad_flush(producer, CLAD_LEVEL_DEFAULT, END_MS));
  brought_home("close", mixed, clad_close(producer, END_MS));
  if (!keeps) {
    /* Reports of drops are records of the client's own. */
    clad_stats stats = CLAD_STATS_INIT;
    clad_get_stats(producer, &stats);
    say("stats %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", stats.submitted - stats.drop_reports,
        stats.acked - stats.drop_reports, stats.dropped, stats.failed);
  }
  clad_producer_free(producer);
  return 0;
}
