/* Bad days of a disk: full, and one that hangs until the daemon's memory is full too. As root: each test mounts a file
 * system of its own, in a file. */
#include "testing.h"
#include <sys/statvfs.h>

enum { BIG_BYTES = 60000, BIG_RECORDS = 60, NO_SPACE = 17 };

static char place[320];
static char big_text[BIG_BYTES + 1];

static void sh(const char *format, ...) {
  char command[1024];
  va_list more;
  va_start(more, format);
  vsnprintf(command, sizeof command, format, more);
  va_end(more);
  if (system(command) != 0) FAIL("%s", command);
}

/* Also after a failure: what is mounted would stay. */
static void unmount(void) {
  char command[1024];
  snprintf(command, sizeof command, "fsfreeze --unfreeze '%s' 2>&-; umount --lazy '%s'", place, place);
  if (place[0] != 0 && system(command) == 0) place[0] = 0;
}

/* A daemon on a disk of 96 MiB; `holder` has the disk's file. */
static struct daemon on_a_disk(struct daemon *holder) {
  struct daemon d = *holder = daemon_new();
  snprintf(place, sizeof place, "%s/disk", holder->dir);
  sh("truncate --size=96M '%s/image' && mkfs.ext4 -q -F -m 0 '%s/image'", holder->dir, holder->dir);
  sh("mkdir '%s' && mount -o loop '%s/image' '%s'", place, holder->dir, place);
  atexit(unmount);
  CHECK(strlen(place) < sizeof d.dir);
  strcpy(d.dir, place);
  daemon_addresses(&d);
  memset(big_text, 'x', BIG_BYTES);
  return d;
}

static void end(struct daemon *d, struct daemon *holder) {
  daemon_kill(d);
  unmount();
  CHECK(place[0] == 0);
  daemon_free(holder);
}

/* Hands over large records, more than a full disk or a small memory takes. */
static void append_all(clad_producer *producer, clad_ticket **tickets) {
  clad_record big = clad_text(CLAD_INFO, big_text);
  int at;
  for (at = 0; at < BIG_RECORDS; at++) OK(clad_append(producer, &big, 1, NULL, &tickets[at]));
}

/* Another one's record is refused in the end. Those that the daemon had taken before it saw the full disk wait there: so
 * many. */
static uint64_t refused(const struct daemon *d) {
  clad_options options = CLAD_OPTIONS_INIT;
  clad_record big = clad_text(CLAD_INFO, big_text);
  clad_producer *other;
  clad_status status;
  uint64_t taken = 0;
  options.address = d->unix_address;
  options.delivery_timeout_ms = 500;
  options.backoff_first_ms = 1;
  options.backoff_max_ms = 20;
  for (;;) {
    OK(clad_connect(&options, &other));
    status = clad_append_wait(other, &big, NULL, 3000, NULL);
    if (status == CLAD_ERR_REFUSED) break;
    if (status != CLAD_OK) IS(status, CLAD_ERR_TIMEOUT);
    CHECK(++taken < 20);
    OK(clad_producer_free(other));
  }
  CHECK(clad_error_code() == NO_SPACE && clad_error_is_retryable() && !clad_error_maybe_written());
  OK(clad_producer_free(other));
  return taken;
}

static void all_are_stored(clad_producer *producer, clad_ticket **tickets) {
  clad_receipt receipt;
  uint64_t last = 0;
  int at;
  for (at = 0; at < BIG_RECORDS; at++) {
    OK(clad_ticket_wait(tickets[at], LONG_MS, &receipt));
    CHECK(receipt.level == CLAD_LEVEL_DURABLE && receipt.first_offset > last);
    last = receipt.first_offset;
    OK(clad_ticket_free(tickets[at]));
  }
  CHECK(stats_of(producer).failed == 0);
  OK(clad_close(producer, LONG_MS));
  OK(clad_producer_free(producer));
}

static void a_full_disk_refuses_for_now_and_loses_nothing(void) {
  struct daemon holder, d = on_a_disk(&holder);
  clad_record first = clad_text(CLAD_INFO, "first"), again = clad_text(CLAD_INFO, big_text);
  clad_ticket *tickets[BIG_RECORDS], *ticket;
  clad_producer *producer;
  struct statvfs free_space;
  char path[400];
  uint64_t taken, found;
  int fd, at;
  d.settings[0] = "journal.segment_bytes=1MiB";
  d.settings[1] = "journal.max_record_bytes=64KiB";
  d.settings[2] = "limits.max_append_bytes=256KiB";
  d.settings[3] = "journal.reserve_free=1MiB";
  d.settings[4] = "journal.recycle=false";
  daemon_start(&d);
  producer = producer_at(d.unix_address, "disk");
  OK(clad_append_wait(producer, &first, NULL, LONG_MS, NULL));
  snprintf(path, sizeof path, "%s/others", d.dir);
  CHECK((fd = open(path, O_WRONLY | O_CREAT, 0600)) >= 0);
  CHECK(statvfs(d.dir, &free_space) == 0);
  CHECK(posix_fallocate(fd, 0, (off_t)(free_space.f_bavail * free_space.f_frsize - (1 << 20))) == 0);
  close(fd);
  append_all(producer, tickets);
  taken = refused(&d);
  /* Now this one is refused too, and sends it again. */
  OK(clad_append(producer, &again, 1, NULL, &ticket));
  for (at = 0; stats_of(producer).resent == 0; at++, sleep_ms(10)) CHECK(at < LONG_MS / 10);
  CHECK(unlink(path) == 0);
  OK(clad_ticket_wait(ticket, LONG_MS, NULL));
  OK(clad_ticket_free(ticket));
  all_are_stored(producer, tickets);
  found = stored(&d, big_text);
  CHECK(found > BIG_RECORDS && found <= BIG_RECORDS + 1 + taken);
  end(&d, &holder);
}

static void a_disk_that_hangs_costs_no_call_its_deadline(void) {
  struct daemon holder, d = on_a_disk(&holder);
  clad_record first = clad_text(CLAD_INFO, "first");
  clad_ticket *tickets[BIG_RECORDS];
  clad_producer *producer;
  const char *seconds = getenv("CLAD_HANG_SECONDS");
  uint64_t hang_ms = seconds == NULL ? 1000 : strtoul(seconds, NULL, 10) * 1000;
  int at;
  d.settings[0] = "limits.max_inflight_bytes=1MiB";
  d.settings[1] = "limits.max_connection_inflight_bytes=1MiB";
  d.settings[2] = "limits.max_append_bytes=128KiB";
  d.settings[3] = "journal.max_record_bytes=128KiB";
  daemon_start(&d);
  producer = producer_at(d.unix_address, "disk");
  OK(clad_append_wait(producer, &first, NULL, LONG_MS, NULL));
  sh("fsfreeze --freeze '%s'", d.dir);
  append_all(producer, tickets);
  IS(clad_ticket_wait(tickets[BIG_RECORDS - 1], hang_ms, NULL), CLAD_PENDING);
  IS(clad_flush(producer, CLAD_LEVEL_DURABLE, 10), CLAD_ERR_TIMEOUT);
  CHECK(clad_error_maybe_written());
  /* The daemon waits for room, and then is busy for what its memory does not take. */
  for (at = 0; stats_of(producer).resent == 0; at++, sleep_ms(10)) CHECK(at < LONG_MS / 10);
  sh("fsfreeze --unfreeze '%s'", d.dir);
  all_are_stored(producer, tickets);
  CHECK(stored(&d, big_text) == BIG_RECORDS);
  end(&d, &holder);
}

int main(int argc, char **argv) {
  static const struct test tests[] = {
      {"a_full_disk_refuses_for_now_and_loses_nothing", a_full_disk_refuses_for_now_and_loses_nothing},
      {"a_disk_that_hangs_costs_no_call_its_deadline", a_disk_that_hangs_costs_no_call_its_deadline},
      {NULL, NULL}};
  return run_tests(tests, argc, argv);
}
