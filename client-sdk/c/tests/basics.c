/* What each call does, and does with bad arguments. All of it runs under valgrind, too. */
#include "testing.h"
#include <math.h>

static void a_first_record_is_durable_and_comes_back(void) {
  struct daemon d = daemon_new();
  clad_producer *producer = NULL;
  clad_record record = clad_text(CLAD_INFO, "paid");
  clad_receipt receipt;
  clad_reader *reader = NULL;
  clad_event event = CLAD_EVENT_INIT;
  daemon_start(&d);
  setenv("CLAD_SERVER", d.unix_address, 1);
  OK(clad_connect(NULL, &producer));
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, &receipt));
  CHECK(receipt.level == CLAD_LEVEL_DURABLE && receipt.has_offset == 1 && receipt.count == 1);
  OK(clad_reader_open(NULL, &reader));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.kind == CLAD_EVENT_RECORD && event.offset == receipt.first_offset);
  CHECK(event.body.value_type == CLAD_TYPE_STRING && event.body.data_len == 4);
  CHECK(strcmp((const char *)event.body.data, "paid") == 0 && event.severity == CLAD_INFO);
  CHECK(strcmp(event.component, "basics") == 0 && event.time_unix_nano > 1600000000000000000u);
  IS(clad_reader_next(reader, LONG_MS, &event), CLAD_END);
  IS(clad_reader_next(reader, LONG_MS, &event), CLAD_END);
  OK(clad_reader_free(reader));
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  unsetenv("CLAD_SERVER");
  daemon_free(&d);
}

static void every_type_comes_back(void) {
  static const char with_nul[] = "a\0b", not_utf8[] = "caf\xe9";
  static const uint8_t trace_id[16] = {1, 2, 3}, span_id[8] = {4, 5};
  struct daemon d = daemon_new();
  clad_producer *producer;
  clad_record record = CLAD_RECORD_INIT;
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_reader *reader;
  clad_event event = CLAD_EVENT_INIT;
  clad_attribute attributes[] = {
      clad_string("text", "one"),   clad_int("int", INT64_MIN),    clad_double("double", 0.5),
      clad_bool("yes", true),       clad_bytes("bytes", "\0\1", 2), clad_string("latin", not_utf8),
      clad_string("same", "first"), clad_string("same", "second"), clad_double("nan", NAN),
  };
  daemon_start(&d);
  producer = producer_at(d.tcp_address, "types");
  record.body = with_nul;
  record.body_len = 3;
  record.time_unix_nano = 77;
  record.severity = -3;
  record.severity_text = "odd";
  record.event_name = "shop.paid";
  record.trace_id = trace_id;
  record.span_id = span_id;
  record.attributes = attributes;
  record.attributes_count = sizeof attributes / sizeof attributes[0];
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
  record = clad_text(0, not_utf8);
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
  record.body = NULL;
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));

  options.address = d.unix_address;
  OK(clad_reader_open(&options, &reader));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.body.data_len == 3 && memcmp(event.body.data, with_nul, 4) == 0);
  CHECK(event.time_unix_nano == 77 && event.severity == -3);
  CHECK(strcmp(event.severity_text, "odd") == 0 && strcmp(event.event_name, "shop.paid") == 0);
  CHECK(event.attributes_count == 9 && strcmp(event.attributes[0].key, "text") == 0);
  CHECK(strcmp((const char *)event.attributes[0].data, "one") == 0);
  CHECK(event.attributes[1].value_type == CLAD_TYPE_INT && event.attributes[1].integer == INT64_MIN);
  CHECK(event.attributes[2].value_type == CLAD_TYPE_DOUBLE && event.attributes[2].real == 0.5);
  CHECK(event.attributes[3].value_type == CLAD_TYPE_BOOL && event.attributes[3].integer == 1);
  CHECK(event.attributes[4].value_type == CLAD_TYPE_BYTES && event.attributes[4].data_len == 2);
  CHECK(event.attributes[5].value_type == CLAD_TYPE_BYTES);
  CHECK(memcmp(event.attributes[5].data, not_utf8, 4) == 0 && event.attributes[5].data_len == 4);
  CHECK(strcmp((const char *)event.attributes[7].data, "second") == 0);
  CHECK(event.attributes[8].value_type == CLAD_TYPE_DOUBLE && isnan(event.attributes[8].real));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.body.value_type == CLAD_TYPE_BYTES && event.body.data_len == 4);
  CHECK(memcmp(event.body.data, not_utf8, 4) == 0);
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.body.value_type == 0 && event.body.data == NULL);
  OK(clad_reader_free(reader));
  daemon_free(&d);
}

static void bad_arguments_are_errors(void) {
  struct daemon d = daemon_new();
  clad_options options = CLAD_OPTIONS_INIT;
  clad_call call = CLAD_CALL_INIT;
  clad_record record = clad_text(CLAD_INFO, "x");
  clad_attribute attribute = clad_int("n", 1);
  clad_stats stats = CLAD_STATS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_producer *producer, *none = (clad_producer *)&stats;
  clad_ticket *ticket;
  clad_reader *reader;
  char small[10];
  struct {
    size_t size;
    uint32_t level;
    uint32_t others[5];
  } older = {12, CLAD_LEVEL_WRITTEN, {99, 99, 99, 99, 99}};
  IS(clad_connect(NULL, NULL), CLAD_ERR_ARGUMENT);
  options.address = "http://x";
  IS(clad_connect(&options, &none), CLAD_ERR_ADDRESS);
  CHECK(none == NULL && strstr(clad_error_text(), "http") != NULL);
  options.address = "\xff";
  IS(clad_start(&options, &none), CLAD_ERR_ARGUMENT);
  options.address = d.unix_address;
  options.level = 6;
  IS(clad_start(&options, &none), CLAD_ERR_ARGUMENT);
  options.level = 0;
  options.overload = 5;
  IS(clad_start(&options, &none), CLAD_ERR_ARGUMENT);
  options.overload = 0;
  options.producer_epoch = 1;
  IS(clad_start(&options, &none), CLAD_ERR_ARGUMENT);
  options.producer_epoch = 0;
  options.size = 0;
  IS(clad_start(&options, &none), CLAD_ERR_ARGUMENT);

  daemon_start(&d);
  producer = producer_at(d.unix_address, "arguments");
  IS(clad_log(NULL, CLAD_INFO, "x", NULL, 0), CLAD_ERR_ARGUMENT);
  IS(clad_log(producer, CLAD_INFO, NULL, NULL, 0), CLAD_ERR_ARGUMENT);
  IS(clad_log(producer, CLAD_INFO, "x", NULL, 1), CLAD_ERR_ARGUMENT);
  attribute.key = NULL;
  IS(clad_log(producer, CLAD_INFO, "x", &attribute, 1), CLAD_ERR_ARGUMENT);
  attribute = clad_int("n\xff", 1);
  IS(clad_log(producer, CLAD_INFO, "x", &attribute, 1), CLAD_ERR_ARGUMENT);
  attribute = clad_string("n", NULL);
  IS(clad_log(producer, CLAD_INFO, "x", &attribute, 1), CLAD_ERR_ARGUMENT);
  attribute = clad_int("n", 1);
  attribute.value_type = 8;
  IS(clad_log(producer, CLAD_INFO, "x", &attribute, 1), CLAD_ERR_ARGUMENT);
  IS(clad_log_record(producer, NULL, NULL), CLAD_ERR_ARGUMENT);
  record.body_type = CLAD_TYPE_INT;
  IS(clad_log_record(producer, &record, NULL), CLAD_ERR_ARGUMENT);
  record = clad_text(CLAD_INFO, "x");
  record.body_len = SIZE_MAX - 1;
  IS(clad_log_record(producer, &record, NULL), CLAD_ERR_ARGUMENT);
  record = clad_text(CLAD_INFO, "x");
  call.level = 99;
  IS(clad_log_record(producer, &record, &call), CLAD_ERR_ARGUMENT);
  IS(clad_append(producer, NULL, 1, NULL, &ticket), CLAD_ERR_ARGUMENT);
  CHECK(ticket == NULL);
  IS(clad_append(producer, &record, 0, NULL, &ticket), CLAD_ERR_ARGUMENT);
  IS(clad_append_wait(NULL, &record, NULL, 1, NULL), CLAD_ERR_ARGUMENT);
  CHECK(!clad_error_maybe_written() && !clad_error_is_retryable());
  IS(clad_flush(NULL, 0, 1), CLAD_ERR_ARGUMENT);
  IS(clad_flush(producer, 77, 1), CLAD_ERR_ARGUMENT);
  IS(clad_close(NULL, 1), CLAD_ERR_ARGUMENT);
  IS(clad_get_stats(producer, NULL), CLAD_ERR_ARGUMENT);
  IS(clad_get_stats(NULL, &stats), CLAD_ERR_ARGUMENT);
  IS(clad_next_sequence(producer, NULL), CLAD_ERR_ARGUMENT);
  IS(clad_ticket_wait(NULL, 0, NULL), CLAD_ERR_ARGUMENT);
  IS(clad_ticket_wait((clad_ticket *)(void *)producer, 0, NULL), CLAD_ERR_ARGUMENT);
  IS(clad_ticket_free((clad_ticket *)(void *)producer), CLAD_ERR_ARGUMENT);
  CHECK(!clad_has_ring(NULL));
  IS(clad_why_waiting(NULL, small, sizeof small), CLAD_ERR_ARGUMENT);
  IS(clad_why_waiting(producer, NULL, sizeof small), CLAD_ERR_ARGUMENT);
  IS(clad_why_waiting(producer, small, 0), CLAD_ERR_ARGUMENT);
  OK(clad_why_waiting(producer, small, 1));
  CHECK(small[0] == 0);
  OK(clad_producer_free(NULL));
  OK(clad_ticket_free(NULL));
  OK(clad_reader_free(NULL));
  /* An older header's struct ends before its neighbours in memory. */
  OK(clad_append_wait(producer, &record, (const clad_call *)(void *)&older, LONG_MS, NULL));
  setenv("CLAD_SERVER", "unix:///nowhere/clad.sock", 1);
  IS(clad_reader_open(NULL, &reader), CLAD_ERR_CONNECT);
  IS(clad_connect(NULL, &none), CLAD_ERR_CONNECT);
  CHECK(clad_error_is_retryable() && strstr(clad_error_text(), "/nowhere/clad.sock") != NULL);
  unsetenv("CLAD_SERVER");
  {
    clad_reader_options from = CLAD_READER_OPTIONS_INIT;
    from.address = d.unix_address;
    from.start = 9;
    IS(clad_reader_open(&from, &reader), CLAD_ERR_ARGUMENT);
    from.start = CLAD_START_CURSOR;
    IS(clad_reader_open(&from, &reader), CLAD_ERR_ARGUMENT);
    from.start_cursor = "no cursor";
    IS(clad_reader_open(&from, &reader), CLAD_ERR_ARGUMENT);
    CHECK(reader == NULL);
    from.start = CLAD_START_OLDEST;
    IS(clad_reader_open(&from, NULL), CLAD_ERR_ARGUMENT);
    OK(clad_reader_open(&from, &reader));
    IS(clad_reader_cursor(reader, small, sizeof small), CLAD_PENDING);
    IS(clad_reader_next(reader, LONG_MS, NULL), CLAD_ERR_ARGUMENT);
    OK(clad_reader_next(reader, LONG_MS, &event));
    CHECK(event.offset == 0);
    IS(clad_reader_cursor(reader, small, sizeof small), CLAD_ERR_ARGUMENT);
    IS(clad_reader_next(NULL, 0, &event), CLAD_ERR_ARGUMENT);
    OK(clad_reader_free(reader));
  }
  stats = stats_of(producer);
  CHECK(stats.submitted == 1 && stats.acked == 1 && stats.dropped == 0);
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  daemon_free(&d);
}

static void a_ticket_gives_its_outcome_and_gives_it_again(void) {
  struct daemon d = daemon_new();
  clad_call call = CLAD_CALL_INIT;
  clad_record records[3] = {CLAD_RECORD_INIT, CLAD_RECORD_INIT, CLAD_RECORD_INIT};
  clad_producer *producer;
  clad_ticket *ticket;
  clad_receipt first, again;
  int at;
  daemon_start(&d);
  producer = producer_at(d.unix_address, "tickets");
  for (at = 0; at < 3; at++) records[at] = clad_text(CLAD_INFO, "together");
  OK(clad_append(producer, records, 3, NULL, &ticket));
  OK(clad_ticket_wait(ticket, LONG_MS, &first));
  CHECK(first.count == 3 && first.first_offset == 0 && first.level == CLAD_LEVEL_DURABLE);
  OK(clad_ticket_wait(ticket, 0, &again));
  CHECK(memcmp(&first, &again, sizeof first) == 0);
  OK(clad_ticket_wait(ticket, 0, NULL));
  OK(clad_ticket_free(ticket));
  call.level = CLAD_LEVEL_NONE;
  OK(clad_append_wait(producer, records, &call, LONG_MS, &first));
  CHECK(first.has_offset == 0 && first.level == CLAD_LEVEL_NONE);
  call.level = CLAD_LEVEL_RECEIVED;
  OK(clad_append_wait(producer, records, &call, LONG_MS, &first));
  CHECK(first.has_offset == 1 && first.level == CLAD_LEVEL_RECEIVED);
  /* Freed before its outcome, and none at all: the flush knows. */
  OK(clad_append(producer, records, 1, NULL, &ticket));
  OK(clad_ticket_free(ticket));
  OK(clad_append(producer, records, 1, NULL, NULL));
  OK(clad_flush(producer, CLAD_LEVEL_DEFAULT, LONG_MS));
  CHECK(stored(&d, "together") == 7);
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  daemon_free(&d);
}

static void a_closed_producer_is_an_error(void) {
  struct daemon d = daemon_new();
  clad_record record = clad_text(CLAD_INFO, "late");
  clad_producer *producer;
  clad_stats stats;
  daemon_start(&d);
  producer = producer_at(d.unix_address, "closed");
  OK(clad_log(producer, CLAD_INFO, "in time", NULL, 0));
  OK(clad_close(producer, LONG_MS));
  IS(clad_log(producer, CLAD_INFO, "late", NULL, 0), CLAD_ERR_CLOSED);
  IS(clad_append_wait(producer, &record, NULL, LONG_MS, NULL), CLAD_ERR_CLOSED);
  CHECK(!clad_error_maybe_written());
  IS(clad_close(producer, LONG_MS), CLAD_ERR_CLOSED);
  IS(clad_flush(producer, CLAD_LEVEL_WRITTEN, LONG_MS), CLAD_ERR_CLOSED);
  stats = stats_of(producer);
  CHECK(stats.submitted == 3 && stats.acked == 1 && stats.dropped_ended == 2);
  CHECK(stored(&d, "in time") == 1 && stored(&d, NULL) == 1);
  OK(clad_producer_free(producer));
  daemon_free(&d);
}

static void a_level_that_is_not_offered_is_refused_and_not_lowered(void) {
  struct daemon d = daemon_new();
  clad_record record = clad_text(CLAD_INFO, "x");
  clad_call call = CLAD_CALL_INIT;
  clad_producer *producer;
  clad_receipt receipt;
  d.policy = "fire_and_forget";
  daemon_start(&d);
  producer = producer_at(d.unix_address, "levels");
  call.level = CLAD_LEVEL_DURABLE;
  IS(clad_append_wait(producer, &record, &call, LONG_MS, &receipt), CLAD_ERR_LEVEL);
  CHECK(!clad_error_maybe_written() && !clad_error_is_retryable() && clad_error_code() == 8);
  call.level = CLAD_LEVEL_POSTED;
  IS(clad_append_wait(producer, &record, &call, LONG_MS, &receipt), CLAD_ERR_LEVEL);
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, &receipt));
  CHECK(receipt.level == CLAD_LEVEL_WRITTEN && receipt.first_offset == 0);
  OK(clad_flush(producer, CLAD_LEVEL_DEFAULT, LONG_MS));
  IS(clad_flush(producer, CLAD_LEVEL_DURABLE, LONG_MS), CLAD_ERR_LEVEL);
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  daemon_free(&d);
}

static void a_reader_goes_on_at_its_cursor(void) {
  struct daemon d = daemon_new();
  char cursor[CLAD_CURSOR_BYTES];
  clad_record records[4] = {CLAD_RECORD_INIT, CLAD_RECORD_INIT, CLAD_RECORD_INIT, CLAD_RECORD_INIT};
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_producer *producer;
  clad_reader *reader;
  int at;
  daemon_start(&d);
  producer = producer_at(d.unix_address, "cursors");
  for (at = 0; at < 4; at++) {
    records[at] = clad_text(at, "0123");
    records[at].body_len = 1 + (size_t)at;
  }
  OK(clad_append(producer, records, 4, NULL, NULL));
  OK(clad_flush(producer, CLAD_LEVEL_WRITTEN, LONG_MS));
  options.address = d.unix_address;
  for (at = 0; at < 4; at++) {
    /* One record a reader: within an append, too. */
    OK(clad_reader_open(&options, &reader));
    OK(clad_reader_next(reader, LONG_MS, &event));
    CHECK(event.offset == (uint64_t)at && event.end_offset == event.offset + 1);
    CHECK(event.body.data_len == 1 + (size_t)at && event.severity == at);
    OK(clad_reader_cursor(reader, cursor, sizeof cursor));
    OK(clad_reader_free(reader));
    options.start = CLAD_START_CURSOR;
    options.start_cursor = cursor;
  }
  options.follow = 1;
  OK(clad_reader_open(&options, &reader));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.kind == CLAD_EVENT_CAUGHT_UP && event.offset == 4);
  IS(clad_reader_next(reader, 20, &event), CLAD_PENDING);
  OK(clad_append(producer, records, 1, NULL, NULL));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.kind == CLAD_EVENT_RECORD && event.offset == 4);
  OK(clad_reader_free(reader));
  options.follow = 0;
  options.start_cursor = "00000000000000000000000000000001:0:2";
  {
    clad_status status = clad_reader_open(&options, &reader);
    if (status == CLAD_OK) status = clad_reader_next(reader, LONG_MS, &event);
    IS(status, CLAD_ERR_CURSOR);
    OK(clad_reader_free(reader));
  }
  options.start = CLAD_START_TAIL;
  options.start_value = 2;
  OK(clad_reader_open(&options, &reader));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.offset == 3);
  OK(clad_reader_free(reader));
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  daemon_free(&d);
}

/* The offsets that a reader with these options gives, of records alone, up to a 99; then its end. */
static void gives(const clad_reader_options *options, const int *offsets) {
  clad_event event = CLAD_EVENT_INIT;
  clad_reader *reader;
  OK(clad_reader_open(options, &reader));
  for (; *offsets != 99; offsets++) {
    OK(clad_reader_next(reader, LONG_MS, &event));
    if (event.kind != CLAD_EVENT_RECORD || event.offset != (uint64_t)*offsets)
      FAIL("offset %d, not %d", (int)event.offset, *offsets);
  }
  IS(clad_reader_next(reader, LONG_MS, &event), CLAD_END);
  OK(clad_reader_free(reader));
}

static void a_reader_starts_and_ends_where_it_is_asked_to(void) {
  enum { RECORDS = 6 };
  static const int all[] = {0, 1, 2, 3, 4, 5, 99}, from_4[] = {4, 5, 99}, two_from_1[] = {1, 2, 99}, last_3[] = {3, 4, 5, 99},
                   from_300[] = {2, 3, 4, 5, 99}, to_300[] = {0, 1, 2, 99}, between[] = {1, 2, 3, 99}, two_between[] = {1, 2, 99},
                   inside[] = {2, 3, 99}, none[] = {99};
  struct daemon d = daemon_new();
  clad_record records[RECORDS];
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_producer *producer;
  clad_reader *reader;
  clad_status status;
  int at;
  daemon_start(&d);
  producer = producer_at(d.unix_address, "places");
  for (at = 0; at < RECORDS; at++) {
    records[at] = clad_text(CLAD_INFO, "x");
    records[at].time_unix_nano = 100 * (uint64_t)(at + 1);
  }
  /* Four in one append, of which a time leaves out some, and two alone. */
  OK(clad_append(producer, records, 4, NULL, NULL));
  OK(clad_append(producer, records + 4, 1, NULL, NULL));
  OK(clad_append(producer, records + 5, 1, NULL, NULL));
  OK(clad_flush(producer, CLAD_LEVEL_WRITTEN, LONG_MS));
  options.address = d.unix_address;
  gives(&options, all);
  options.start = CLAD_START_OFFSET;
  gives(&options, all);
  options.start_value = 4;
  gives(&options, from_4);
  options.start_value = 1;
  options.limit = 2;
  gives(&options, two_from_1);
  options.start = CLAD_START_TAIL;
  options.start_value = 3;
  options.limit = 0;
  gives(&options, last_3);
  options.start_value = 0;
  gives(&options, none);
  options.start = CLAD_START_OLDEST;
  options.since = 300;
  gives(&options, from_300);
  options.since = 0;
  options.until = 300;
  gives(&options, to_300);
  options.since = 200;
  options.until = 400;
  gives(&options, between);
  options.limit = 2; /* of what is given */
  gives(&options, two_between);
  options.limit = 0;
  options.start = CLAD_START_OFFSET;
  options.start_value = 2;
  gives(&options, inside);
  options.until = 199;
  gives(&options, none);
  options.since = options.until = 0;
  options.start_value = 7;
  status = clad_reader_open(&options, &reader);
  if (status == CLAD_OK) status = clad_reader_next(reader, LONG_MS, &event);
  IS(status, CLAD_ERR_REFUSED);
  CHECK(!clad_error_is_retryable());
  OK(clad_reader_free(reader));
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  daemon_free(&d);
}

static void a_reader_with_a_filter_gets_what_matches(void) {
  struct daemon d = daemon_new();
  clad_attribute attributes[] = {clad_int("order", 7), clad_string("shop", "north")};
  clad_attribute wanted[] = {clad_int("order", 7)};
  clad_record records[4] = {CLAD_RECORD_INIT, CLAD_RECORD_INIT, CLAD_RECORD_INIT, CLAD_RECORD_INIT};
  const char *components[] = {"other", "filt*"};
  clad_filter filter = CLAD_FILTER_INIT;
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_producer *producer;
  clad_reader *reader;
  daemon_start(&d);
  producer = producer_at(d.unix_address, "filters");
  records[0] = clad_text(CLAD_INFO, "paid");
  records[1] = clad_text(CLAD_ERROR, "paid");
  records[2] = clad_text(CLAD_ERROR, "paid not");
  records[3] = clad_text(CLAD_ERROR, "sent");
  records[1].attributes = records[3].attributes = attributes;
  records[1].attributes_count = records[3].attributes_count = 2;
  OK(clad_append(producer, records, 4, NULL, NULL));
  OK(clad_flush(producer, CLAD_LEVEL_WRITTEN, LONG_MS));
  filter.min_severity = CLAD_ERROR;
  filter.components = components;
  filter.components_count = 2;
  filter.attributes = wanted;
  filter.attributes_count = 1;
  filter.body_contains = "pai";
  options.address = d.unix_address;
  options.filter = &filter;
  OK(clad_reader_open(&options, &reader));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(event.kind == CLAD_EVENT_RECORD && event.offset == 1);
  IS(clad_reader_next(reader, LONG_MS, &event), CLAD_END);
  OK(clad_reader_free(reader));
  components[1] = "filt";
  OK(clad_reader_open(&options, &reader));
  IS(clad_reader_next(reader, LONG_MS, &event), CLAD_END);
  OK(clad_reader_free(reader));
  wanted[0].value_type = 99;
  IS(clad_reader_open(&options, &reader), CLAD_ERR_ARGUMENT);
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  daemon_free(&d);
}

static void a_producer_goes_on_from_what_the_log_has(void) {
  static const uint8_t id[16] = {9, 9};
  struct daemon d = daemon_new();
  clad_options options = CLAD_OPTIONS_INIT;
  clad_record record = clad_text(CLAD_INFO, "n");
  clad_producer *producer;
  uint64_t next = 99, expected = 0;
  int at;
  daemon_start(&d);
  options.address = d.unix_address;
  options.producer_id = id;
  options.resume_level = CLAD_LEVEL_WRITTEN;
  for (at = 0; at < 3; at++) {
    options.producer_epoch = (uint32_t)at + 1;
    OK(clad_connect(&options, &producer));
    OK(clad_next_sequence(producer, &next));
    CHECK(next == expected);
    OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
    OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
    OK(clad_close(producer, LONG_MS));
    OK(clad_producer_free(producer));
    expected += 2;
  }
  options.producer_epoch = 1;
  IS(clad_connect(&options, &producer), CLAD_ERR_REFUSED);
  CHECK(clad_error_code() == 12); /* producer_fenced */
  CHECK(stored(&d, "n") == 6);
  daemon_free(&d);
}

/* An authority, another one, and certificates of the first for a daemon on this host and for a client. */
static const char CERTIFICATES[] =
    "cd '%s' && exec 2>openssl.log && new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test' &&"
    "for name in ca other; do openssl req -x509 $new -keyout $name.key -out $name.crt || exit; done &&"
    "echo subjectAltName=IP:127.0.0.1 >server.ext && echo subjectAltName=URI:spiffe://prod/shop >client.ext &&"
    "for name in server client; do openssl req $new -keyout $name.key -out $name.csr &&"
    "openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile $name.ext -out $name.crt || exit;"
    "done";

static void a_record_comes_within_tls_by_the_name_of_its_sender(void) {
  struct daemon d = daemon_new();
  const char *settings[] = {"tls.cert=server.crt", "tls.key=server.key", "tls.client_ca=ca.crt",
                            "tls.require_client_cert=true", "ingest.tcp.tls=true", "ingest.tcp.allow_read=true"};
  char text[1600], at[1200];
  clad_options options = CLAD_OPTIONS_INIT;
  clad_reader_options reading = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_record record = clad_text(CLAD_INFO, "paid");
  clad_producer *producer, *none;
  clad_reader *reader;
  memcpy(d.settings, settings, sizeof settings);
  CHECK((size_t)snprintf(text, sizeof text, CERTIFICATES, d.dir) < sizeof text);
  CHECK(system(text) == 0);
  daemon_start(&d);

  snprintf(at, sizeof at, "tcp+tls://127.0.0.1:%d?ca=%s/ca.crt&cert=%s/client.crt&key=%s/client.key", d.port, d.dir,
           d.dir, d.dir);
  producer = producer_at(at, "shop");
  OK(clad_append_wait(producer, &record, NULL, LONG_MS, NULL));
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
  reading.address = at;
  OK(clad_reader_open(&reading, &reader));
  OK(clad_reader_next(reader, LONG_MS, &event));
  CHECK(strcmp((const char *)event.body.data, "paid") == 0);
  IS(clad_reader_next(reader, LONG_MS, &event), CLAD_END);
  OK(clad_reader_free(reader));
  snprintf(text, sizeof text,
           "test \"$(\"${CLAD_BIN%%/*}/clactl\" query --server '%s' --identity spiffe://prod/shop -o cat)\" = paid",
           d.unix_address);
  CHECK(system(text) == 0);

  snprintf(at, sizeof at, "tcp+tls://127.0.0.1:%d?ca=%s/ca.crt", d.port, d.dir);
  options.address = at;
  IS(clad_connect(&options, &none), CLAD_ERR_CONNECT);
  CHECK(strstr(clad_error_text(), "the daemon refuses this client") != NULL);
  snprintf(at, sizeof at, "tcp+tls://127.0.0.1:%d?ca=%s/other.crt", d.port, d.dir);
  IS(clad_connect(&options, &none), CLAD_ERR_CONNECT);
  CHECK(strstr(clad_error_text(), "no authority that is trusted here") != NULL);
  snprintf(at, sizeof at, "tcp+tls://127.0.0.1:%d?cipher=x", d.port);
  IS(clad_connect(&options, &none), CLAD_ERR_ADDRESS);
  daemon_free(&d);
}

static const struct test TESTS[] = {
    {"a_first_record_is_durable_and_comes_back", a_first_record_is_durable_and_comes_back},
    {"every_type_comes_back", every_type_comes_back},
    {"bad_arguments_are_errors", bad_arguments_are_errors},
    {"a_ticket_gives_its_outcome_and_gives_it_again", a_ticket_gives_its_outcome_and_gives_it_again},
    {"a_closed_producer_is_an_error", a_closed_producer_is_an_error},
    {"a_level_that_is_not_offered_is_refused_and_not_lowered",
     a_level_that_is_not_offered_is_refused_and_not_lowered},
    {"a_reader_goes_on_at_its_cursor", a_reader_goes_on_at_its_cursor},
    {"a_reader_starts_and_ends_where_it_is_asked_to", a_reader_starts_and_ends_where_it_is_asked_to},
    {"a_reader_with_a_filter_gets_what_matches", a_reader_with_a_filter_gets_what_matches},
    {"a_producer_goes_on_from_what_the_log_has", a_producer_goes_on_from_what_the_log_has},
    {"a_record_comes_within_tls_by_the_name_of_its_sender", a_record_comes_within_tls_by_the_name_of_its_sender},
    {NULL, NULL},
};

int main(int argc, char **argv) { return run_tests(TESTS, argc, argv); }
