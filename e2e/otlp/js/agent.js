// The exporters of JavaScript's SDK, as they come: `agent.js TRANSPORT MODE COUNT`.
//
// README.md has what all agents have in common. The endpoint, headers and compression are the SDK's own variables.
'use strict';

const { context, ROOT_CONTEXT, trace } = require('@opentelemetry/api');
const { BatchLogRecordProcessor, LoggerProvider } = require('@opentelemetry/sdk-logs');
const { resourceFromAttributes } = require('@opentelemetry/resources');

const LEVELS = [[5, 'DEBUG'], [9, 'INFO'], [13, 'WARN'], [17, 'ERROR'], [21, 'FATAL']];
const EXPORTERS = { http: '@opentelemetry/exporter-logs-otlp-proto', json: '@opentelemetry/exporter-logs-otlp-http' };
// Milliseconds between the records of `stream`, and how long the SDK keeps them before it sends.
const STREAM_PAUSE = 5;
const STREAM_DELAY = 10;

// Hands over to an exporter, and prints the number of each record whose export it calls a success.
class Said {
  constructor(exporter) {
    this.exporter = exporter;
  }

  export(records, done) {
    const numbers = records.map((record) => `${record.attributes.n}\n`).join('');
    this.exporter.export(records, (result) => {
      (result.code === 0 ? process.stdout : process.stderr).write(numbers);
      done(result);
    });
  }

  forceFlush() {
    return this.exporter.forceFlush();
  }

  shutdown() {
    return this.exporter.shutdown();
  }
}

function body(n) {
  const odd = { n, list: [1, 'two', [true]] };
  return [`record ${n}`, `Grüße ${n}, 世界 🚀`, '', `one\ntwo\t"three" \\ ${n}`, 'x'.repeat(2000) + n, odd][n % 6];
}

function attributes(n) {
  const kinds = [
    { text: `Zürich/東京 ${n}` },
    // A number of this language holds no more digits.
    { least: Number.MIN_SAFE_INTEGER, most: Number.MAX_SAFE_INTEGER },
    { half: n + 0.5, tiny: 1e-300, negative: -0.25 },
    { yes: true, no: false },
    { list: ['a', n, true, n + 0.5, ['in', []]] },
    { map: { key: 'value', inner: { n, list: [1, 2] } } },
    { bytes: Uint8Array.of(0, 1, 0xfe, 0xff) },
    { empty: '' },
  ];
  return { n, ...kinds[n % 8] };
}

function hex(n, digits) {
  return 'c1ad' + n.toString(16).padStart(digits - 4, '0');
}

function record(n) {
  const [severityNumber, severityText] = LEVELS[n % 5];
  const span = { traceId: hex(n + 1, 32), spanId: hex(n + 1, 16), traceFlags: 1 };
  return {
    severityNumber,
    severityText,
    body: body(n),
    attributes: attributes(n),
    eventName: n % 7 === 3 ? 'order.taken' : undefined,
    exception: n % 10 === 9 ? new RangeError(`broken ${n}`) : undefined,
    context: n % 4 === 0 ? trace.setSpan(ROOT_CONTEXT, trace.wrapSpanContext(span)) : context.active(),
  };
}

async function stream(loggers, count) {
  let ends = false;
  process.stdin.on('end', () => (ends = true)).resume();
  for (let n = 0; n < count && !ends; n += 1) {
    loggers[n % 2].emit({ severityNumber: 9, severityText: 'INFO', body: `record ${n}`, attributes: { n } });
    await new Promise((resolve) => setTimeout(resolve, STREAM_PAUSE));
  }
  process.stdin.destroy();
}

async function main() {
  const [transport, mode, count] = [process.argv[2], process.argv[3], Number(process.argv[4])];
  const { OTLPLogExporter } = require(EXPORTERS[transport]);
  const simple = mode === 'simple';
  const processor = new BatchLogRecordProcessor({
    exporter: new Said(new OTLPLogExporter()),
    scheduledDelayMillis: simple ? 1000 : STREAM_DELAY,
  });
  const provider = new LoggerProvider({
    resource: resourceFromAttributes({
      'service.name': 'otlp-agent', 'telemetry.sdk.language': 'nodejs', cpus: 2, ratio: 0.5, flag: true, names: ['a', 'b'],
    }),
    processors: [processor],
  });
  const loggers = [provider.getLogger('clad.agent', '1.0'), provider.getLogger('clad.other')];
  if (simple) {
    for (let n = 0; n < count; n += 1) loggers[0].emit(record(n));
  } else {
    await stream(loggers, count);
  }
  await provider.forceFlush();
  await provider.shutdown();
}

main();
