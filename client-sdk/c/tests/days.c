/* Bad days: no daemon, one that hangs, dies or is replaced, full memory, threads, forks, signals, long records. */
#include "testing.h"

static clad_producer *started(const char *address, uint64_t buffered, uint32_t overload, uint64_t wait_ms) {
  clad_options options = CLAD_OPTIONS_INIT;
  clad_producer *producer;
  options.address = address;
  options.component = "days";
  options.max_buffered_bytes = buffered;
  options.overload = overload;
  options.wait_ms = wait_ms;
  options.keep_severity = CLAD_WARN;
  options.backoff_first_ms = 1;
  options.backoff_max_ms = 20;
  OK(clad_start(&options, &producer));
  return producer;
}

static void finish(clad_producer *producer) {
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
}

static void without_a_daemon_records_wait_and_then_are_dropped_and_counted(void) {
  struct daemon d = daemon_new();
  clad_options options = CLAD_OPTIONS_INIT;
  clad_producer *producer, *none;
  clad_record record = clad_text(CLAD_INFO, "waits");
  clad_ticket *ticket;
  clad_stats stats;
  clad_status status;
  uint64_t sequence, taken = 1, dropped = 0;
  int at;
  options.address = d.unix_address;
  IS(clad_connect(&options, &none), CLAD_ERR_CONNECT);
  producer = started(d.unix_address, 16 * 1024, 0, 0);
  OK(clad_append(producer, &record, 1, NULL, &ticket));
  IS(clad_ticket_wait(ticket, 0, NULL), CLAD_PENDING);
  IS(clad_ticket_wait(ticket, 20, NULL), CLAD_PENDING);
  IS(clad_next_sequence(producer, &sequence), CLAD_PENDING);
  for (at = 0; at < 200; at++) {
    status = clad_log(producer, CLAD_INFO, "waits", NULL, 0);
    taken += status == CLAD_OK;
    dropped += status == CLAD_ERR_DROPPED;
  }
  IS(status, CLAD_ERR_DROPPED);
  CHECK(clad_error_is_retryable() && !clad_error_maybe_written());
  CHECK(taken + dropped == 201 && taken > 10);
  IS(clad_flush(producer, CLAD_LEVEL_WRITTEN, 20), CLAD_ERR_TIMEOUT);
  CHECK(clad_error_maybe_written());
  IS(clad_flush(producer, CLAD_LEVEL_DEFAULT, 20), CLAD_ERR_TIMEOUT);
  daemon_start(&d);
  OK(clad_ticket_wait(ticket, LONG_MS, NULL));
  OK(clad_ticket_free(ticket));
  OK(clad_flush(producer, CLAD_LEVEL_DEFAULT, LONG_MS));
  stats = stats_of(producer);
  CHECK(stats.dropped == dropped && stats.dropped_no_room == dropped);
  CHECK(stats.submitted - stats.drop_reports == 201 && stored(&d, "waits") == taken);
  finish(producer);
  daemon_free(&d);
}

static void each_rule_for_a_lack_of_room_drops_what_it_says(void) {
  struct daemon d = daemon_new();
  clad_producer *oldest = started(d.unix_address, 16 * 1024, CLAD_OVERLOAD_DROP_OLDEST, 0);
  clad_producer *below = started(d.unix_address, 16 * 1024, CLAD_OVERLOAD_DROP_BELOW, 1);
  clad_producer *waits = started(d.unix_address, 16 * 1024, CLAD_OVERLOAD_WAIT, 1);
  clad_record record = clad_text(CLAD_INFO, "kept");
  clad_call call = CLAD_CALL_INIT;
  clad_stats stats;
  int at;
  /* What the producer's thread has in its hands just then is not dropped: a few find no room all the same. */
  for (at = 0; at < 200; at++) clad_log(oldest, CLAD_INFO, "oldest", NULL, 0);
  stats = stats_of(oldest);
  CHECK(stats.dropped_oldest > 50 && stats.dropped == stats.dropped_oldest + stats.dropped_no_room);
  for (at = 0; at < 200; at++) clad_log(below, at % 2 == 0 ? CLAD_INFO : CLAD_ERROR, "below", NULL, 0);
  stats = stats_of(below);
  CHECK(stats.dropped_severity > 0 && stats.dropped_oldest > 0 && stats.dropped_deadline > 0);
  for (at = 0; at < 100; at++) clad_log(waits, CLAD_INFO, "waits", NULL, 0);
  stats = stats_of(waits);
  CHECK(stats.dropped > 0 && stats.dropped == stats.dropped_deadline);
  /* One call can follow another rule. */
  call.overload = CLAD_OVERLOAD_DROP_OLDEST;
  for (at = 0; clad_log_record(waits, &record, &call) != CLAD_OK; at++) CHECK(at < 100);
  CHECK(stats_of(waits).dropped_oldest > 0);
  daemon_start(&d);
  /* Nobody held a ticket of what was dropped after it was taken: the end says so. */
  IS(clad_close(oldest, LONG_MS), CLAD_ERR_DROPPED);
  CHECK(!clad_error_maybe_written());
  IS(clad_close(below, LONG_MS), CLAD_ERR_DROPPED);
  IS(clad_close(waits, LONG_MS), CLAD_ERR_DROPPED);
  OK(clad_producer_free(oldest));
  OK(clad_producer_free(below));
  OK(clad_producer_free(waits));
  CHECK(stored(&d, "kept") == 1 && stored(&d, "oldest") > 10);
  daemon_free(&d);
}

static void a_daemon_that_hangs_costs_no_call_its_deadline(void) {
  struct daemon d = daemon_new();
  clad_record record = clad_text(CLAD_INFO, "late");
  clad_call call = CLAD_CALL_INIT;
  clad_producer *producer;
  clad_ticket *ticket;
  uint64_t logged = 0, start;
  int at;
  daemon_start(&d);
  producer = started(d.unix_address, 64 * 1024, 0, 0);
  OK(clad_log(producer, CLAD_INFO, "before", NULL, 0));
  OK(clad_flush(producer, CLAD_LEVEL_DURABLE, LONG_MS));
  daemon_stop(&d);
  IS(clad_append_wait(producer, &record, NULL, 50, NULL), CLAD_ERR_TIMEOUT);
  CHECK(clad_error_maybe_written() && clad_error_is_retryable());
  OK(clad_append(producer, &record, 1, NULL, &ticket));
  IS(clad_ticket_wait(ticket, 10, NULL), CLAD_PENDING);
  start = now_ms();
  for (at = 0; at < 1000; at++) logged += clad_log(producer, CLAD_INFO, "hangs", NULL, 0) == CLAD_OK;
  CHECK(logged > 10 && logged < 1000);
  call.overload = CLAD_OVERLOAD_WAIT;
  call.wait_ms = 20;
  IS(clad_log_record(producer, &record, &call), CLAD_ERR_DROPPED);
  IS(clad_flush(producer, CLAD_LEVEL_RECEIVED, 20), CLAD_ERR_TIMEOUT);
  CHECK(stats_of(producer).dropped_deadline == 1);
  CHECK(now_ms() - start < LONG_MS);
  CHECK(kill(d.pid, SIGCONT) == 0);
  OK(clad_ticket_wait(ticket, LONG_MS, NULL));
  OK(clad_ticket_free(ticket));
  OK(clad_flush(producer, CLAD_LEVEL_DURABLE, LONG_MS));
  CHECK(stored(&d, "late") == 2 && stored(&d, "hangs") == logged);
  finish(producer);
  daemon_free(&d);
}

static void kills_of_the_daemon_lose_no_receipt_and_store_nothing_twice(void) {
  enum { RECORDS = 400 };
  struct daemon d = daemon_new();
  const char *addresses[3];
  int way, at, kills;
  addresses[0] = d.unix_address;
  addresses[1] = d.tcp_address;
  addresses[2] = d.shm_address;
  daemon_start(&d);
  for (way = 0; way < 3; way++) {
    clad_producer *producer = started(addresses[way], 0, CLAD_OVERLOAD_WAIT, LONG_MS);
    clad_ticket *tickets[RECORDS];
    char body[32];
    for (at = 0, kills = 0; at < RECORDS; at++) {
      clad_record record = clad_text(CLAD_INFO, body);
      clad_call call = CLAD_CALL_INIT;
      snprintf(body, sizeof body, "%d of way %d", at, way);
      call.level = at % 2 == 0 ? CLAD_LEVEL_WRITTEN : CLAD_LEVEL_DURABLE;
      OK(clad_append(producer, &record, 1, &call, &tickets[at]));
      if (at % 100 == 50) {
        OK(clad_ticket_wait(tickets[at - 20], LONG_MS, NULL)); /* so it was connected */
        daemon_kill(&d);
        daemon_start(&d);
        kills++;
      }
    }
    for (at = 0; at < RECORDS; at++) {
      OK(clad_ticket_wait(tickets[at], LONG_MS, NULL));
      OK(clad_ticket_free(tickets[at]));
    }
    CHECK(kills == 4 && stats_of(producer).reconnects >= 4);
    finish(producer);
    for (at = 0; at < RECORDS; at += 37) {
      snprintf(body, sizeof body, "%d of way %d", at, way);
      CHECK(stored(&d, body) == 1);
    }
    CHECK(stored(&d, NULL) == (uint64_t)RECORDS * (unsigned)(way + 1));
  }
  daemon_free(&d);
}

struct logging {
  clad_producer *producer;
  int records;
  volatile int *stop;
  uint64_t taken;
};

static void *logs(void *argument) {
  struct logging *logging = (struct logging *)argument;
  clad_attribute attribute = clad_int("thread", 1);
  int at;
  for (at = 0; logging->stop != NULL ? !*logging->stop : at < logging->records; at++) {
    logging->taken += clad_log(logging->producer, CLAD_INFO, "thread", &attribute, 1) == CLAD_OK;
    if (logging->stop != NULL && at % 10 == 9) sleep_ms(1);
  }
  return NULL;
}

static void sixty_four_threads_share_a_producer(void) {
  enum { THREADS = 64, EACH = 200 };
  struct daemon d = daemon_new();
  const char *addresses[2];
  pthread_t threads[THREADS];
  int way, at;
  daemon_start(&d);
  addresses[0] = d.unix_address;
  addresses[1] = d.shm_address;
  for (way = 0; way < 2; way++) {
    clad_producer *producer = started(addresses[way], 0, 0, 0);
    struct logging logging = {producer, EACH, NULL, 0};
    struct logging each[THREADS];
    clad_stats stats;
    uint64_t taken = 0;
    for (at = 0; at < THREADS; at++) {
      each[at] = logging;
      CHECK(pthread_create(&threads[at], NULL, logs, &each[at]) == 0);
    }
    for (at = 0; at < THREADS; at++) {
      CHECK(pthread_join(threads[at], NULL) == 0);
      taken += each[at].taken;
    }
    CHECK(taken == THREADS * EACH);
    OK(clad_close(producer, LONG_MS));
    stats = stats_of(producer);
    /* A ring that closes may not have counted its last acks; the log below has all records. */
    if (stats.submitted != THREADS * EACH || stats.failed + stats.dropped != 0 || (way == 0 && stats.acked != THREADS * EACH))
      FAIL("%s: %d submitted, %d acked, %d failed, %d dropped", addresses[way], (int)stats.submitted, (int)stats.acked,
           (int)stats.failed, (int)stats.dropped);
    OK(clad_producer_free(producer));
    CHECK(stored(&d, "thread") == (uint64_t)THREADS * EACH * (unsigned)(way + 1));
  }
  daemon_free(&d);
}

static void two_mebibytes_are_the_limit(void) {
  enum { MAX = 2 << 20 };
  struct daemon d = daemon_new();
  clad_record record = clad_text(CLAD_INFO, NULL);
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_producer *producer;
  clad_reader *reader;
  char *body = (char *)malloc(MAX);
  CHECK(body != NULL);
  memset(body, 'x', MAX);
  daemon_start(&d);
  producer = started(d.unix_address, 0, 0, 0);
  record.body = body;
  record.body_len = MAX - 32; /* the header of a record */
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
  record.body_len = MAX;
  IS(clad_append_wait(producer, &record, NULL, LONG_MS, NULL), CLAD_ERR_TOO_LARGE);
  CHECK(!clad_error_maybe_written());
  IS(clad_log_record(producer, &record, NULL), CLAD_ERR_TOO_LARGE);
  CHECK(stats_of(producer).dropped_too_large == 2);
  OK(clad_log(producer, CLAD_INFO, "after", NULL, 0));
  OK(clad_flush(producer, CLAD_LEVEL_WRITTEN, LONG_MS));
  options.address = d.unix_address;
  OK(clad_reader_open(&options, &reader));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.body.data_len == MAX - 32 && memcmp(event.body.data, body, MAX - 32) == 0);
  OK(clad_reader_free(reader));
  CHECK(stored(&d, "after") == 1 && stored(&d, NULL) == 2);
  finish(producer);
  free(body);
  daemon_free(&d);
}

/* What a child does with its parent's handles, and then with its own. */
static void in_a_child(clad_producer *parents, clad_ticket *ticket, clad_reader *reader, const char *address) {
  clad_record record = clad_text(CLAD_INFO, "child");
  clad_event event = CLAD_EVENT_INIT;
  clad_stats stats = CLAD_STATS_INIT;
  clad_producer *own;
  uint64_t sequence;
  char why[CLAD_WHY_BYTES];
  alarm(60); /* a child that hangs fails its parent's test */
  IS(clad_log(parents, CLAD_INFO, "child", NULL, 0), CLAD_ERR_FORKED);
  IS(clad_append_wait(parents, &record, NULL, LONG_MS, NULL), CLAD_ERR_FORKED);
  IS(clad_flush(parents, CLAD_LEVEL_WRITTEN, LONG_MS), CLAD_ERR_FORKED);
  IS(clad_flush(parents, CLAD_LEVEL_DEFAULT, LONG_MS), CLAD_ERR_FORKED);
  IS(clad_next_sequence(parents, &sequence), CLAD_ERR_FORKED);
  IS(clad_why_waiting(parents, why, sizeof why), CLAD_ERR_FORKED);
  IS(clad_ticket_wait(ticket, LONG_MS, NULL), CLAD_ERR_FORKED);
  CHECK(clad_error_maybe_written());
  IS(clad_reader_next(reader, LONG_MS, &event), CLAD_ERR_FORKED);
  IS(clad_close(parents, LONG_MS), CLAD_ERR_FORKED);
  OK(clad_get_stats(parents, &stats));
  OK(clad_ticket_free(ticket));
  OK(clad_reader_free(reader));
  OK(clad_producer_free(parents));
  own = started(address, 0, 0, 0);
  OK(clad_append_wait(own, &record, NULL, LONG_MS, NULL));
  finish(own);
  exit(0);
}

static void a_child_of_fork_gets_an_error_until_it_begins_again(void) {
  enum { FORKS = 12, THREADS = 4 };
  struct daemon d = daemon_new();
  const char *addresses[2];
  int way, at, status;
  daemon_start(&d);
  addresses[0] = d.unix_address;
  addresses[1] = d.shm_address;
  for (way = 0; way < 2; way++) {
    volatile int stop = 0;
    clad_producer *producer = started(addresses[way], 0, 0, 0);
    struct logging logging = {producer, 0, &stop, 0};
    struct logging each[THREADS];
    pthread_t threads[THREADS];
    clad_record record = clad_text(CLAD_INFO, "parent");
    clad_reader_options options = CLAD_READER_OPTIONS_INIT;
    clad_event event = CLAD_EVENT_INIT;
    clad_reader *reader;
    uint64_t taken = 0, before = stored(&d, NULL), given = 0;
    options.address = d.unix_address;
    options.follow = 1;
    OK(clad_reader_open(&options, &reader));
    OK(clad_flush(producer, CLAD_LEVEL_DEFAULT, LONG_MS));
    CHECK(clad_has_ring(producer) == (way == 1));
    for (at = 0; at < THREADS; at++) {
      each[at] = logging;
      CHECK(pthread_create(&threads[at], NULL, logs, &each[at]) == 0);
    }
    /* Calls are under way in the other threads. */
    for (at = 0; at < FORKS; at++) {
      clad_ticket *ticket;
      pid_t child;
      daemon_stop(&d); /* so that the ticket has no outcome yet */
      OK(clad_append(producer, &record, 1, NULL, &ticket));
      child = fork();
      CHECK(child >= 0);
      if (child == 0) in_a_child(producer, ticket, reader, addresses[way]);
      CHECK(kill(d.pid, SIGCONT) == 0);
      CHECK(waitpid(child, &status, 0) == child && status == 0);
      OK(clad_ticket_wait(ticket, LONG_MS, NULL));
      OK(clad_ticket_free(ticket));
    }
    stop = 1;
    for (at = 0; at < THREADS; at++) {
      CHECK(pthread_join(threads[at], NULL) == 0);
      taken += each[at].taken;
    }
    OK(clad_flush(producer, CLAD_LEVEL_WRITTEN, LONG_MS));
    taken += FORKS + FORKS + before;
    CHECK(stored(&d, "child") == (uint64_t)FORKS * (unsigned)(way + 1));
    CHECK(stored(&d, NULL) == taken);
    /* The parent's reader is as it was. */
    while (given < taken) {
      OK(clad_reader_next(reader, LONG_MS, &event));
      given += event.kind == CLAD_EVENT_RECORD && strcmp(event.event_name, "clad.records_dropped") != 0;
    }
    OK(clad_reader_free(reader));
    finish(producer);
  }
  daemon_free(&d);
}

static volatile sig_atomic_t handled;

static void handle(int number) { handled += number == SIGUSR1; }

static void no_thread_of_the_library_takes_a_signal(void) {
  struct daemon d = daemon_new();
  clad_producer *producer;
  sigset_t set, pending;
  int at;
  daemon_start(&d);
  CHECK(signal(SIGUSR1, handle) != SIG_ERR);
  producer = started(d.unix_address, 0, 0, 0);
  OK(clad_flush(producer, CLAD_LEVEL_DEFAULT, LONG_MS));
  /* The program's own mask is as it was. */
  CHECK(pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && sigismember(&set, SIGUSR1) == 0);
  CHECK(raise(SIGUSR1) == 0 && handled == 1);
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
  /* Only a thread of the library could take it now. */
  CHECK(kill(getpid(), SIGUSR1) == 0);
  for (at = 0; at < 20; at++) {
    OK(clad_log(producer, CLAD_INFO, "x", NULL, 0));
    OK(clad_flush(producer, CLAD_LEVEL_WRITTEN, LONG_MS));
  }
  CHECK(handled == 1 && sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1);
  CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0 && handled == 2);
  finish(producer);
  daemon_free(&d);
}

static void a_ring_takes_records_and_gives_receipts(void) {
  struct daemon d = daemon_new();
  clad_record record = clad_text(CLAD_INFO, "ring");
  clad_producer *producer;
  clad_receipt receipt;
  int at;
  daemon_start(&d);
  producer = producer_at(d.shm_address, "ring");
  CHECK(clad_has_ring(producer));
  for (at = 0; at < 1000; at++) OK(clad_log(producer, CLAD_INFO, "ring", NULL, 0));
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, &receipt));
  CHECK(receipt.level == CLAD_LEVEL_DURABLE && receipt.first_offset == 1000);
  OK(clad_flush(producer, CLAD_LEVEL_DURABLE, LONG_MS));
  CHECK(stored(&d, "ring") == 1001);
  finish(producer);
  daemon_free(&d);
}

static void a_producer_that_is_freed_brings_its_records_home(void) {
  struct daemon d = daemon_new();
  clad_producer *producer;
  int at;
  daemon_start(&d);
  producer = producer_at(d.unix_address, "freed");
  for (at = 0; at < 100; at++) OK(clad_log(producer, CLAD_INFO, "home", NULL, 0));
  OK(clad_producer_free(producer));
  for (at = 0; at < 3000 && stored(&d, "home") < 100; at++) sleep_ms(10);
  CHECK(stored(&d, "home") == 100);
  daemon_free(&d);
}

static void a_daemon_that_is_replaced_gets_nothing_of_what_the_other_may_have(void) {
  struct daemon d = daemon_new();
  clad_record record = clad_text(CLAD_INFO, "sent");
  clad_receipt before, after;
  clad_producer *producer;
  clad_ticket *ticket;
  char command[400];
  daemon_start(&d);
  producer = producer_at(d.unix_address, "replaced");
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, &before));
  daemon_stop(&d);
  OK(clad_append(producer, &record, 1, NULL, &ticket));
  while (stats_of(producer).sent < 2) sleep_ms(1);
  daemon_kill(&d);
  snprintf(command, sizeof command, "rm -r '%s/clad-data'", d.dir);
  CHECK(system(command) == 0);
  daemon_start(&d);
  IS(clad_ticket_wait(ticket, LONG_MS, NULL), CLAD_ERR_UNKNOWN);
  CHECK(clad_error_maybe_written());
  OK(clad_ticket_free(ticket));
  record = clad_text(CLAD_INFO, "after");
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, &after));
  CHECK(memcmp(before.log_id, after.log_id, sizeof after.log_id) != 0 && after.first_offset == 0);
  CHECK(stored(&d, "after") == 1 && stored(&d, NULL) == 1);
  finish(producer);
  daemon_free(&d);
}

static void a_socket_that_vanishes_is_waited_for(void) {
  struct daemon d = daemon_new();
  char why[CLAD_WHY_BYTES], cut[9];
  clad_options options = CLAD_OPTIONS_INIT;
  clad_record record = clad_text(CLAD_INFO, "waits");
  clad_producer *producer, *none;
  clad_ticket *ticket;
  daemon_start(&d);
  producer = producer_at(d.unix_address, "vanishes");
  CHECK(unlink(d.unix_address + 7) == 0);
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL)); /* its connection is there */
  options.address = d.unix_address;
  IS(clad_connect(&options, &none), CLAD_ERR_CONNECT);
  CHECK(clad_error_is_retryable());
  daemon_kill(&d);
  OK(clad_append(producer, &record, 1, NULL, &ticket));
  IS(clad_ticket_wait(ticket, 50, NULL), CLAD_PENDING);
  do OK(clad_why_waiting(producer, why, sizeof why));
  while (why[0] == 0);
  CHECK(strstr(why, d.unix_address + 7) != NULL);
  OK(clad_why_waiting(producer, cut, sizeof cut));
  CHECK(strlen(cut) == sizeof cut - 1 && strncmp(cut, why, sizeof cut - 1) == 0);
  daemon_start(&d);
  OK(clad_ticket_wait(ticket, LONG_MS, NULL));
  OK(clad_why_waiting(producer, why, sizeof why));
  CHECK(why[0] == 0);
  OK(clad_ticket_free(ticket));
  CHECK(stored(&d, "waits") == 2);
  finish(producer);
  daemon_free(&d);
}

static void what_is_not_allowed_is_refused_for_good(void) {
  struct daemon d = daemon_new();
  clad_reader_options reading = CLAD_READER_OPTIONS_INIT;
  clad_options options = CLAD_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_record record = clad_text(CLAD_INFO, "mine");
  clad_producer *producer, *none;
  clad_reader *reader;
  clad_status status;
  daemon_start(&d);
  reading.address = d.tcp_address;
  status = clad_reader_open(&reading, &reader);
  if (status == CLAD_OK) {
    status = clad_reader_next(reader, LONG_MS, &event);
    CHECK(!clad_error_is_retryable());
    OK(clad_reader_free(reader));
  }
  IS(status, CLAD_ERR_REFUSED);
  options.address = d.tcp_address;
  options.producer_id = (const uint8_t *)"abcdabcdabcdabcd";
  options.producer_epoch = 1;
  options.secret = (const uint8_t *)"mine";
  options.secret_len = 4;
  OK(clad_connect(&options, &producer));
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
  options.producer_epoch = 2;
  options.secret = (const uint8_t *)"hers";
  IS(clad_connect(&options, &none), CLAD_ERR_REFUSED);
  CHECK(none == NULL && !clad_error_is_retryable());
  finish(producer);
  CHECK(stored(&d, "mine") == 1 && stored(&d, NULL) == 1);
  daemon_free(&d);
}

static const struct test TESTS[] = {
    {"a_daemon_that_is_replaced_gets_nothing_of_what_the_other_may_have",
     a_daemon_that_is_replaced_gets_nothing_of_what_the_other_may_have},
    {"a_socket_that_vanishes_is_waited_for", a_socket_that_vanishes_is_waited_for},
    {"what_is_not_allowed_is_refused_for_good", what_is_not_allowed_is_refused_for_good},
    {"without_a_daemon_records_wait_and_then_are_dropped_and_counted",
     without_a_daemon_records_wait_and_then_are_dropped_and_counted},
    {"each_rule_for_a_lack_of_room_drops_what_it_says", each_rule_for_a_lack_of_room_drops_what_it_says},
    {"a_daemon_that_hangs_costs_no_call_its_deadline", a_daemon_that_hangs_costs_no_call_its_deadline},
    {"kills_of_the_daemon_lose_no_receipt_and_store_nothing_twice",
     kills_of_the_daemon_lose_no_receipt_and_store_nothing_twice},
    {"sixty_four_threads_share_a_producer", sixty_four_threads_share_a_producer},
    {"two_mebibytes_are_the_limit", two_mebibytes_are_the_limit},
    {"a_child_of_fork_gets_an_error_until_it_begins_again", a_child_of_fork_gets_an_error_until_it_begins_again},
    {"no_thread_of_the_library_takes_a_signal", no_thread_of_the_library_takes_a_signal},
    {"a_ring_takes_records_and_gives_receipts", a_ring_takes_records_and_gives_receipts},
    {"a_producer_that_is_freed_brings_its_records_home", a_producer_that_is_freed_brings_its_records_home},
    {NULL, NULL},
};

int main(int argc, char **argv) { return run_tests(TESTS, argc, argv); }
