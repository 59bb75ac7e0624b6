// What a test does to a stream of NATS beside clad-relay, and what a consumer of another make finds in it.
//
//	nats SERVER make STREAM SUBJECT [MAX_AGE] · limit STREAM MESSAGES · purge STREAM · remove STREAM · publish SUBJECT TEXT · read STREAM ·
//	last STREAM HEADER · count STREAM · flood SUBJECT MESSAGES BYTES PENDING
//	nats FOLDER accounts
//
// `read` prints a line of JSON for each message that is there, in the order of the stream. `flood` publishes messages, with so
// many unanswered at most, and prints how many a second. `accounts` makes an operator and an account of accounts by JWT:
// `server.conf`, lines of a server that trusts them, and `user.creds` of a user. Variables: CLAD_NATS_CA with CLAD_NATS_CERT and
// CLAD_NATS_KEY for TLS; CLAD_NATS_USER as USER:PASSWORD, CLAD_NATS_TOKEN, or CLAD_NATS_CREDENTIALS.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

const timeout = 60 * time.Second

type message struct {
	Sequence uint64            `json:"sequence"`
	Subject  string            `json:"subject"`
	Headers  map[string]string `json:"headers"`
	Data     string            `json:"data"` // in hex
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
	if command == "accounts" {
		return accounts(server)
	}
	options := []nats.Option{
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond),
	}
	if ca := os.Getenv("CLAD_NATS_CA"); ca != "" {
		options = append(options, nats.RootCAs(ca), nats.ClientCert(os.Getenv("CLAD_NATS_CERT"), os.Getenv("CLAD_NATS_KEY")))
	}
	if user, password, is := strings.Cut(os.Getenv("CLAD_NATS_USER"), ":"); is {
		options = append(options, nats.UserInfo(user, password))
	}
	if token := os.Getenv("CLAD_NATS_TOKEN"); token != "" {
		options = append(options, nats.Token(token))
	}
	if file := os.Getenv("CLAD_NATS_CREDENTIALS"); file != "" {
		options = append(options, nats.UserCredentials(file))
	}
	connection, err := nats.Connect(server, options...)
	if err != nil {
		return err
	}
	defer connection.Close()
	for !connection.IsConnected() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(5 * time.Millisecond)
	}
	js, err := jetstream.New(connection)
	if err != nil {
		return err
	}
	switch command {
	case "make":
		config := jetstream.StreamConfig{Name: args[0], Subjects: []string{args[1]}, Storage: jetstream.FileStorage}
		if len(args) > 2 {
			if config.MaxAge, err = time.ParseDuration(args[2]); err != nil {
				return err
			}
			config.Duplicates = config.MaxAge
		}
		_, err = js.CreateStream(ctx, config)
		return err
	case "limit":
		stream, err := js.Stream(ctx, args[0])
		if err != nil {
			return err
		}
		config := stream.CachedInfo().Config
		config.Discard = jetstream.DiscardNew
		if config.MaxMsgs, err = strconv.ParseInt(args[1], 10, 64); err != nil {
			return err
		}
		_, err = js.UpdateStream(ctx, config)
		return err
	case "purge":
		stream, err := js.Stream(ctx, args[0])
		if err != nil {
			return err
		}
		return stream.Purge(ctx)
	case "remove":
		return js.DeleteStream(ctx, args[0])
	case "publish":
		_, err = js.Publish(ctx, args[0], []byte(args[1]))
		return err
	case "read":
		return read(ctx, js, args[0])
	case "last":
		stream, err := js.Stream(ctx, args[0])
		if err != nil {
			return err
		}
		state := stream.CachedInfo().State
		if state.Msgs == 0 {
			return nil
		}
		last, err := stream.GetMsg(ctx, state.LastSeq)
		if err != nil {
			return err
		}
		fmt.Println(last.Header.Get(args[1]))
		return nil
	case "count":
		stream, err := js.Stream(ctx, args[0])
		if err != nil {
			return err
		}
		fmt.Println(stream.CachedInfo().State.Msgs)
		return nil
	case "flood":
		return flood(connection, args[0], args[1:])
	}
	return fmt.Errorf("no such command: %s", command)
}

func accounts(folder string) error {
	operator, err := nkeys.CreateOperator()
	if err != nil {
		return err
	}
	account, err := nkeys.CreateAccount()
	if err != nil {
		return err
	}
	system, err := nkeys.CreateAccount() // JetStream wants one
	if err != nil {
		return err
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	public := func(pair nkeys.KeyPair) string {
		key, _ := pair.PublicKey()
		return key
	}
	operators, err := jwt.NewOperatorClaims(public(operator)).Encode(operator)
	if err != nil {
		return err
	}
	claims := jwt.NewAccountClaims(public(account))
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{
		MemoryStorage: jwt.NoLimit, DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit,
	}
	accounts, err := claims.Encode(operator)
	if err != nil {
		return err
	}
	systems, err := jwt.NewAccountClaims(public(system)).Encode(operator)
	if err != nil {
		return err
	}
	users, err := jwt.NewUserClaims(public(user)).Encode(account)
	if err != nil {
		return err
	}
	seed, err := user.Seed()
	if err != nil {
		return err
	}
	credentials, err := jwt.FormatUserConfig(users, seed)
	if err != nil {
		return err
	}
	config := fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: %s, %s: %s }\n",
		operators, public(system), public(account), accounts, public(system), systems)
	if err := os.WriteFile(filepath.Join(folder, "server.conf"), []byte(config), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "user.creds"), credentials, 0o600)
}

func flood(connection *nats.Conn, subject string, args []string) error {
	var numbers [3]int
	for i := range numbers {
		if _, err := fmt.Sscan(args[i], &numbers[i]); err != nil {
			return err
		}
	}
	messages, body, pending := numbers[0], make([]byte, numbers[1]), numbers[2]
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(pending))
	if err != nil {
		return err
	}
	began := time.Now()
	for range messages {
		if _, err := js.PublishAsync(subject, body, jetstream.WithStallWait(timeout)); err != nil {
			return err
		}
	}
	<-js.PublishAsyncComplete()
	fmt.Printf("%.0f messages/s\n", float64(messages)/time.Since(began).Seconds())
	return nil
}

func read(ctx context.Context, js jetstream.JetStream, name string) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	if info.State.Msgs == 0 {
		return nil
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	out := json.NewEncoder(os.Stdout)
	for {
		next, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		about, err := next.Metadata()
		if err != nil {
			return err
		}
		found := message{about.Sequence.Stream, next.Subject(), map[string]string{}, hex.EncodeToString(next.Data())}
		for name := range next.Headers() {
			found.Headers[name] = next.Headers().Get(name)
		}
		if err := out.Encode(found); err != nil {
			return err
		}
		if about.Sequence.Stream >= info.State.LastSeq {
			return nil
		}
	}
}
