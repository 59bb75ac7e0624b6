// A web service that logs with slog to clad. Each request is a record; an order is answered only when its record is as
// safe as the log can make it.
//
//	go run ./examples/service -listen 127.0.0.1:8080 -server unix:///run/clad/clad.sock
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"clad"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "where to serve")
	server := flag.String("server", "", "the daemon; else CLAD_SERVER, else this host's")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *server, func(net.Addr) {}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen, server string, ready func(net.Addr)) error {
	if server == "" {
		var found bool
		if server, found = clad.FindDaemon(); !found {
			return errors.New("there is no clad on this host")
		}
	}
	// Not Dial: the service starts before the daemon, too, and its records wait.
	p, err := clad.Start(server, clad.Options{Component: "shop"})
	if err != nil {
		return err
	}
	log := slog.New(clad.NewHandler(p, nil))

	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	web := &http.Server{Handler: handler(p, log), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		web.Shutdown(context.Background())
	}()
	log.Info("serving", "address", l.Addr().String())
	ready(l.Addr())
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	log.Info("stopped")
	end, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return p.Close(end) // brings home what is still in memory
}

func handler(p *clad.Producer, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/order", func(w http.ResponseWriter, r *http.Request) {
		record := clad.Text(clad.SeverityInfo, "order taken")
		record.EventName = "shop.order"
		record.Attributes = []clad.Attr{clad.KV("item", r.FormValue("item"))}
		receipt, err := p.Send(r.Context(), record, clad.Highest)
		if err != nil {
			http.Error(w, "not taken", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "order %d, %v\n", receipt.FirstOffset, receipt.Level)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		mux.ServeHTTP(w, r)
		log.LogAttrs(r.Context(), slog.LevelInfo, "request", slog.String("method", r.Method), slog.String("path", r.URL.Path),
			slog.Duration("took", time.Since(start)))
	})
}
