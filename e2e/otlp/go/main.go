// The exporters of Go's SDK, as they come: `agent TRANSPORT MODE COUNT`.
//
// README.md has what all agents have in common. The endpoint, headers and compression are the SDK's own variables.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
)

// Between the records of `stream`, and how long the SDK keeps them before it sends.
const (
	streamPause = 5 * time.Millisecond
	streamDelay = 10 * time.Millisecond
)

var (
	levels = []log.Severity{log.SeverityDebug, log.SeverityInfo, log.SeverityWarn, log.SeverityError, log.SeverityFatal}
	words  = []string{"DEBUG", "INFO", "WARN", "ERROR", "FATAL"}
)

// said hands over to an exporter, and prints the number of each record whose export it calls a success.
type said struct{ sdklog.Exporter }

func (s said) Export(ctx context.Context, records []sdklog.Record) error {
	var numbers bytes.Buffer
	for _, record := range records {
		record.WalkAttributes(func(pair attribute.KeyValue) bool {
			if pair.Key == "n" {
				fmt.Fprintln(&numbers, pair.Value.AsInt64())
			}
			return pair.Key != "n"
		})
	}
	err := s.Exporter.Export(ctx, records)
	to := os.Stdout
	if err != nil {
		to = os.Stderr
	}
	_, _ = numbers.WriteTo(to)
	return err
}

func exporter(ctx context.Context, transport string) (sdklog.Exporter, error) {
	switch transport {
	case "grpc":
		return otlploggrpc.New(ctx)
	case "http":
		return otlploghttp.New(ctx)
	}
	return nil, errors.New("no exporter for " + transport)
}

func body(n int) attribute.Value {
	switch n % 6 {
	case 0:
		return attribute.StringValue(fmt.Sprintf("record %d", n))
	case 1:
		return attribute.StringValue(fmt.Sprintf("Grüße %d, 世界 🚀", n))
	case 2:
		return attribute.StringValue("")
	case 3:
		return attribute.StringValue(fmt.Sprintf("one\ntwo\t\"three\" \\ %d", n))
	case 4:
		return attribute.StringValue(strings.Repeat("x", 2000) + strconv.Itoa(n))
	}
	list := []attribute.Value{
		attribute.IntValue(1), attribute.StringValue("two"), attribute.SliceValue(attribute.BoolValue(true)),
	}
	return attribute.MapValue(attribute.Int("n", n), attribute.Slice("list", list...))
}

func attributes(n int) []attribute.KeyValue {
	inner := attribute.SliceValue(attribute.StringValue("in"), attribute.SliceValue())
	kinds := [][]attribute.KeyValue{
		{attribute.String("text", fmt.Sprintf("Zürich/東京 %d", n))},
		{attribute.Int64("least", math.MinInt64), attribute.Int64("most", math.MaxInt64)},
		{attribute.Float64("half", float64(n)+0.5), attribute.Float64("tiny", 1e-300), attribute.Float64("negative", -0.25)},
		{attribute.Bool("yes", true), attribute.Bool("no", false)},
		{attribute.Slice("list", attribute.StringValue("a"), attribute.IntValue(n), attribute.BoolValue(true),
			attribute.Float64Value(float64(n)+0.5), inner)},
		{attribute.Map("map", attribute.String("key", "value"),
			attribute.Map("inner", attribute.Int("n", n), attribute.IntSlice("list", []int{1, 2})))},
		{attribute.ByteSlice("bytes", []byte{0, 1, 0xfe, 0xff})},
		{attribute.String("empty", "")},
	}
	return append([]attribute.KeyValue{attribute.Int("n", n)}, kinds[n%8]...)
}

// span is the context of a span that was begun elsewhere.
func span(ctx context.Context, n int) (context.Context, error) {
	traceID, err := trace.TraceIDFromHex(fmt.Sprintf("c1ad%028x", n+1))
	if err != nil {
		return nil, err
	}
	spanID, err := trace.SpanIDFromHex(fmt.Sprintf("c1ad%012x", n+1))
	if err != nil {
		return nil, err
	}
	config := trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled}
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(config)), nil
}

func logSimple(ctx context.Context, logger log.Logger, n int) (err error) {
	var record log.Record
	record.SetTimestamp(time.Now())
	record.SetSeverity(levels[n%5])
	record.SetSeverityText(words[n%5])
	record.SetBody(body(n))
	record.AddAttributes(attributes(n)...)
	if n%7 == 3 {
		record.SetEventName("order.taken")
	}
	if n%10 == 9 {
		record.SetErr(fmt.Errorf("broken %d", n))
	}
	if n%4 == 0 {
		if ctx, err = span(ctx, n); err != nil {
			return err
		}
	}
	logger.Emit(ctx, record)
	return nil
}

func stream(ctx context.Context, loggers [2]log.Logger, count int) {
	ends := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ends)
	}()
	for n := range count {
		var record log.Record
		record.SetTimestamp(time.Now())
		record.SetSeverity(log.SeverityInfo)
		record.SetBody(attribute.StringValue(fmt.Sprintf("record %d", n)))
		record.AddAttributes(attribute.Int("n", n))
		loggers[n%2].Emit(ctx, record)
		select {
		case <-ends:
			return
		case <-time.After(streamPause):
		}
	}
}

func run(transport, mode, number string) error {
	ctx := context.Background()
	count, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	to, err := exporter(ctx, transport)
	if err != nil {
		return err
	}
	delay := time.Second
	if mode != "simple" {
		delay = streamDelay
	}
	about := resource.NewSchemaless(
		attribute.String("service.name", "otlp-agent"), attribute.String("telemetry.sdk.language", "go"), attribute.Int("cpus", 2),
		attribute.Float64("ratio", 0.5), attribute.Bool("flag", true), attribute.StringSlice("names", []string{"a", "b"}))
	provider := sdklog.NewLoggerProvider(sdklog.WithResource(about),
		sdklog.WithProcessor(sdklog.NewBatchProcessor(said{to}, sdklog.WithExportInterval(delay))))
	logger := provider.Logger("clad.agent", log.WithInstrumentationVersion("1.0"),
		log.WithInstrumentationAttributes(attribute.String("kind", "test")))
	if mode == "simple" {
		for n := range count {
			if err := logSimple(ctx, logger, n); err != nil {
				return err
			}
		}
	} else {
		stream(ctx, [2]log.Logger{logger, provider.Logger("clad.other")}, count)
	}
	return provider.Shutdown(ctx)
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "agent TRANSPORT MODE COUNT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
