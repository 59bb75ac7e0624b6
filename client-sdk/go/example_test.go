package clad_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"clad"
)

// Examples run against the daemon of $CLAD_SERVER; TestExamples gives them one.

func server() string {
	addr, found := clad.FindDaemon()
	if !found {
		addr = "unix:///run/clad/clad.sock"
	}
	return addr
}

func ExampleDial() {
	ctx := context.Background()
	p, err := clad.Dial(server(), clad.Options{Component: "billing"})
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	receipt, err := p.Send(ctx, clad.Text(clad.SeverityInfo, "paid"), clad.Durable)
	fmt.Println(receipt.Level, receipt.Count, err)
}

func ExampleNewHandler() {
	p, err := clad.Start(server(), clad.Options{Component: "shop"})
	if err != nil {
		panic(err)
	}
	log := slog.New(clad.NewHandler(p, &clad.HandlerOptions{Level: slog.LevelDebug}))
	log.Info("paid", "order", 17, slog.Group("customer", "name", "Ada"))

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(p.Close(ctx), p.Stats().Acked)
}

func ExampleProducer_Append() {
	ctx := context.Background()
	p, err := clad.Dial(server(), clad.Options{Component: "audit"})
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	var tickets []*clad.Ticket
	for i := range 3 {
		record := clad.Text(clad.SeverityInfo, "login")
		record.Attributes = []clad.Attr{clad.KV("attempt", i)}
		// An audit record is worth a wait of a second, if there is no room.
		ticket, err := p.Append(ctx, record, clad.Durable, clad.WaitAtMost(time.Second))
		if err != nil {
			panic(err) // it is certainly not written
		}
		tickets = append(tickets, ticket)
	}
	for _, ticket := range tickets {
		receipt, err := ticket.Wait(ctx)
		var failed *clad.AppendError
		if errors.As(err, &failed) && failed.MaybeWritten {
			fmt.Println("it may be written:", err)
		}
		fmt.Println(receipt.Level, err)
	}
}

func ExampleOpenReader() {
	ctx := context.Background()
	r, err := clad.OpenReader(ctx, server(), clad.ReaderOptions{From: clad.FromTail(10)})
	if err != nil {
		panic(err)
	}
	defer r.Close()
	for {
		event, err := r.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			panic(err)
		}
		switch e := event.(type) {
		case *clad.Records:
			for _, stored := range e.Records {
				fmt.Println(e.Group.Component(), stored.Record.Body.Text())
			}
		case clad.Gap:
			fmt.Println("missing:", e.From, "to", e.To)
		}
	}
	cursor, _ := r.Cursor() // to go on from later: clad.ParseCursor(cursor.String())
	_ = cursor
}

// A program that must write each of its records exactly once, whenever it dies.
func ExampleProducer_LastStored() {
	ctx := context.Background()
	opts := clad.Options{Component: "import", ProducerEpoch: uint32(time.Now().Unix())} // rises with each start
	hex.Decode(opts.ProducerID[:], []byte("0123456789abcdef0123456789abcdef"))
	p, err := clad.Dial(server(), opts)
	if err != nil {
		panic(err)
	}
	next := uint64(0)
	if last, some := p.LastStored(); some {
		next = last.Sequence + 1
	}
	for ; next < 5; next++ {
		if _, err := p.Append(ctx, clad.Text(clad.SeverityInfo, fmt.Sprint("line ", next)), clad.Durable); err != nil {
			panic(err)
		}
	}
	fmt.Println(p.Close(ctx))
}

// said runs an example and answers what it printed.
func said(t *testing.T, example func()) string {
	t.Helper()
	before := os.Stdout
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = w
	example()
	os.Stdout = before
	w.Close()
	text, _ := io.ReadAll(r)
	return strings.TrimSpace(string(text))
}

func TestExamples(t *testing.T) {
	t.Setenv("CLAD_SERVER", clad.DaemonForTests(t))
	for _, test := range []struct {
		run  func()
		want string
	}{
		{ExampleDial, "durable 1 <nil>"},
		{ExampleNewHandler, "<nil> 1"},
		{ExampleProducer_Append, "durable <nil>\ndurable <nil>\ndurable <nil>"},
		{ExampleProducer_LastStored, "<nil>"},
		{ExampleProducer_LastStored, "<nil>"},
		{ExampleOpenReader, "billing paid\nshop paid\naudit login\naudit login\naudit login\n" +
			"import line 0\nimport line 1\nimport line 2\nimport line 3\nimport line 4"},
	} {
		if got := said(t, test.run); got != test.want {
			t.Errorf("%s\n--\n%s", got, test.want)
		}
	}
}

// The lines of the package's documentation, in an empty project, are a durable record; and at most five.
func TestAFirstDurableRecordInAnEmptyProject(t *testing.T) {
	addr := clad.DaemonForTests(t)
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(doc), "# A first durable record\n//\n")
	text, _, _ = strings.Cut(text, "//\n")
	code := strings.ReplaceAll(text, "//\t", "")
	if n := strings.Count(code, "\n"); n == 0 || n > 5 {
		t.Fatalf("%d lines:\n%s", n, code)
	}
	dir := t.TempDir()
	program := "package main\n\nimport (\n\"clad\"\n\"context\"\n\"fmt\"\n)\n\nfunc main() {\n" + code +
		"fmt.Println(receipt.Level, err)\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	here, _ := os.Getwd()
	for _, words := range [][]string{
		{"mod", "init", "example"}, {"mod", "edit", "-require", "clad@v0.0.0", "-replace", "clad=" + here}, {"run", "."},
	} {
		command := exec.Command("go", words...)
		command.Dir = dir
		command.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "CLAD_SERVER="+addr)
		out, err := command.CombinedOutput()
		if err != nil || (words[0] == "run" && string(out) != "durable <nil>\n") {
			t.Fatalf("go %v: %v\n%s", words, err, out)
		}
	}
}
