// What a test does to a topic of Kafka beside clad-relay, and what a consumer of another make finds in it.
//
//	kafka SERVER make TOPIC PARTITIONS [KEY=VALUE...] · remove TOPIC · publish TOPIC TEXT · trim TOPIC OFFSET · read TOPIC [LAST]
//	deny TOPIC USER · allow TOPIC USER · quota CLIENT BYTES_A_SECOND (0 ends it)
//
// `read` prints a line of JSON for each message that is committed, by partitions, in their order; of the last so many offsets.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const timeout = 60 * time.Second

type message struct {
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Key       string            `json:"key"`
	Time      int64             `json:"time"` // Unix milliseconds
	Headers   map[string]string `json:"headers"`
	Data      string            `json:"data"` // in hex
}

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(server, command string, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(server))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topic := args[0]
	switch command {
	case "make":
		partitions, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		configs := map[string]*string{}
		for _, pair := range args[2:] {
			key, value, _ := strings.Cut(pair, "=")
			configs[key] = &value
		}
		// A topic that was just removed may still be on its way out.
		for {
			_, err := admin.CreateTopic(ctx, int32(partitions), 1, configs, topic)
			if !errors.Is(err, kerr.TopicAlreadyExists) || ctx.Err() != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
	case "remove":
		_, err := admin.DeleteTopic(ctx, topic)
		return err
	case "publish":
		return client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(args[1])}).FirstErr()
	case "trim":
		offset, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: offset})
		done, err := admin.DeleteRecords(ctx, offsets)
		if err == nil {
			err = done.Error()
		}
		return err
	case "deny", "allow":
		acl := kadm.NewACLs().Deny("User:" + args[1]).DenyHosts().Topics(topic).Operations(kadm.OpWrite)
		acl.ResourcePatternType(kadm.ACLPatternLiteral)
		if command == "deny" {
			done, err := admin.CreateACLs(ctx, acl)
			for _, one := range done {
				err = errors.Join(err, one.Err)
			}
			return err
		}
		done, err := admin.DeleteACLs(ctx, acl)
		for _, one := range done {
			err = errors.Join(err, one.Err)
		}
		return err
	case "quota":
		rate, err := strconv.ParseFloat(args[1], 64)
		if err != nil {
			return err
		}
		of := kadm.ClientQuotaEntity{{Type: "client-id", Name: &args[0]}}
		change := kadm.AlterClientQuotaOp{Key: "producer_byte_rate", Value: rate, Remove: rate == 0}
		done, err := admin.AlterClientQuotas(ctx, []kadm.AlterClientQuotaEntry{{Entity: of, Ops: []kadm.AlterClientQuotaOp{change}}})
		for _, one := range done {
			err = errors.Join(err, one.Err)
		}
		return err
	case "read":
		back := int64(math.MaxInt64)
		if len(args) > 1 {
			var err error
			if back, err = strconv.ParseInt(args[1], 10, 64); err != nil {
				return err
			}
		}
		return read(ctx, admin, server, topic, back)
	}
	return fmt.Errorf("no such command: %s", command)
}

func read(ctx context.Context, admin *kadm.Client, server, topic string, back int64) error {
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return err
	}
	if err := errors.Join(starts.Error(), ends.Error()); err != nil {
		return err
	}
	lines := json.NewEncoder(os.Stdout)
	for partition := int32(0); int(partition) < len(ends[topic]); partition++ {
		end := ends[topic][partition].Offset
		if starts[topic][partition].Offset >= end {
			continue
		}
		first := kgo.NewOffset().At(max(starts[topic][partition].Offset, end-back))
		from := map[string]map[int32]kgo.Offset{topic: {partition: first}}
		// Markers of transactions are kept too: by them the end is known.
		client, err := kgo.NewClient(kgo.SeedBrokers(server), kgo.ConsumePartitions(from),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
		if err != nil {
			return err
		}
		for next := int64(0); next < end; {
			fetched := client.PollFetches(ctx)
			if err := fetched.Err(); err != nil {
				return err
			}
			fetched.EachRecord(func(record *kgo.Record) {
				next = record.Offset + 1
				if record.Attrs.IsControl() {
					return
				}
				headers := map[string]string{}
				for _, header := range record.Headers {
					headers[header.Key] = string(header.Value)
				}
				err = errors.Join(err, lines.Encode(message{record.Partition, record.Offset, string(record.Key),
					record.Timestamp.UnixMilli(), headers, hex.EncodeToString(record.Value)}))
			})
			if err != nil {
				return err
			}
		}
		client.Close()
	}
	return nil
}
