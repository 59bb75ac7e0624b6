/* Prints the log: a line "OFFSET COMPONENT BODY" for each record that is no report of drops. */
#include <clad.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  clad_reader_options options = CLAD_READER_OPTIONS_INIT;
  clad_event event = CLAD_EVENT_INIT;
  clad_reader *reader = NULL;
  clad_status status;
  options.address = argc > 1 ? argv[1] : NULL;
  status = clad_reader_open(&options, &reader);
  while (status == CLAD_OK && (status = clad_reader_next(reader, 30000, &event)) == CLAD_OK) {
    if (event.kind == CLAD_EVENT_RECORD && strcmp(event.event_name, "clad.records_dropped") != 0)
      printf("%" PRIu64 " %s %s\n", event.offset, event.component, (const char *)event.body.data);
  }
  clad_reader_free(reader);
  if (status == CLAD_END) return 0;
  fprintf(stderr, "%s: %s\n", clad_status_name(status), clad_error_text());
  return 1;
}
