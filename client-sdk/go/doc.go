// Package clad hands log records to clad, the log daemon of a host, and says how safe each of them is. It is pure Go and
// needs the standard library only.
//
// # A first durable record
//
//	p, err := clad.Dial("", clad.Options{Component: "billing"})
//	if err != nil {
//		panic(err)
//	}
//	receipt, err := p.Send(context.Background(), clad.Text(clad.SeverityInfo, "paid"), clad.Durable)
//
// The daemon is that of $CLAD_SERVER, else that of /run/clad/clad.sock. For one that was started by hand:
//
//	export CLAD_SERVER=unix:///FOLDER/clad-data/clad.sock
//
// Addresses are unix://PATH, tcp://HOST:PORT, and within TLS
// tcp+tls://HOST:PORT?ca=FILE&cert=FILE&key=FILE&server_name=NAME. What that leaves out comes from $CLAD_TLS_CA,
// $CLAD_TLS_CERT, $CLAD_TLS_KEY, $CLAD_TLS_SERVER_NAME; docs/TLS.md has the rules. Files are read at each connection. A
// token for a daemon with rules of access (docs/ACCESS.md) is in the file that $CLAD_TOKEN_FILE names. Rings of shared
// memory and gRPC are not in this client.
//
// The module is not published. In another module:
//
//	go mod edit -require clad@v0.0.0 -replace clad=PATH/client-sdk/go
//
// # With slog
//
//	slog.SetDefault(slog.New(clad.NewHandler(p, nil)))
//
// A call puts its record in memory and returns; see [Handler]. Close the producer before the program ends.
//
// # Appending
//
// [Producer.Append] gives a [Ticket]; [Ticket.Wait] gives its [Receipt] or an [*AppendError]. Several goroutines share a
// producer. Promises: records of one producer are stored in the order in which they were handed over. Each is stored
// once, also when it was sent several times over several connections. A receipt is never given before the daemon's
// answer. An error says whether the record may be in the log.
//
// While there is no daemon, records wait in memory, at most [Options.MaxBufferedBytes]; the producer connects by itself.
// [WhenFull] says what happens then: wait, with a deadline, or drop the newest, the oldest, or what is less severe. Every
// drop is counted in [Stats]. When there is room again, a record with the event name `clad.records_dropped` says how many
// were dropped and when.
//
// # Levels
//
// none, received (the daemon holds it), written (the kernel has it: survives the daemon's death), durable (on stable
// storage: survives power loss). `docs/DURABILITY.md` has their exact meaning.
//
// # Reading
//
// [OpenReader] reads from an offset, a cursor, a time or the last n records, and follows. A [Filter] says which records are
// wanted. A [Gap] is an [Event]. A cursor of a history that is gone is a [*CursorAbandonedError], never a silent skip.
//
// # A durable identity
//
// With [Options.ProducerID] and an [Options.ProducerEpoch] that rises with each start, a program that was killed learns
// from [Producer.LastStored] how many of its records the log has, and goes on from there: each once.
package clad
