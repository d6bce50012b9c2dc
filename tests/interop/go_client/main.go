// What people do with the official Go client, scenario by scenario; prints what was observed as JSON lines.
//
//	go_client SERVICE_URL ADMIN_URL [SCENARIO…]
//	go_client door SERVICE_URL KIND [ARGUMENT…]      (doors.go)
//
// Ids, times, addresses and the broker's own sentences are left out, so that the lines of two brokers compare.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

// together is how many scenarios run at a time: most of them wait most of the time.
const together = 8

type scenario struct {
	name string
	run  func(*world)
}

func scenarios() []scenario {
	return slices.Concat(producerScenarios, consumerScenarios, deliveryScenarios, readerScenarios, schemaScenarios, troubleScenarios)
}

func logger() plog.Logger {
	quietly := logrus.New()
	quietly.SetOutput(os.Stderr)
	quietly.SetLevel(logrus.WarnLevel)
	return plog.NewLoggerWithLogrus(quietly)
}

func attempt(w *world, run func(*world)) {
	defer func() {
		switch found := recover().(type) {
		case nil:
		case stopped:
			w.saw("stopped", found.why)
		default:
			w.saw("stopped", fmt.Sprint("the client panicked: ", found))
		}
	}()
	w.client = must(pulsar.NewClient(pulsar.ClientOptions{URL: w.url, OperationTimeout: patience, Logger: logger()}))
	defer w.client.Close()
	run(w)
}

func main() {
	if os.Args[1] == "door" {
		door(os.Args[2], os.Args[3], os.Args[4:])
		return
	}
	wanted := os.Args[3:]
	places := make(chan bool, together)
	var all sync.WaitGroup
	worlds := []*world{}
	for _, one := range scenarios() {
		if len(wanted) > 0 && !slices.Contains(wanted, one.name) {
			continue
		}
		w := &world{name: one.name, url: os.Args[1], admin: os.Args[2]}
		worlds = append(worlds, w)
		all.Add(1)
		go func() {
			defer all.Done()
			places <- true
			defer func() { <-places }()
			began := time.Now()
			done := make(chan bool)
			go func() { attempt(w, one.run); close(done) }()
			select {
			case <-done:
			case <-time.After(3 * time.Minute):
				w.saw("stopped", "the scenario did not end")
			}
			fmt.Fprintln(os.Stderr, "SCENARIO", one.name, time.Since(began).Round(time.Millisecond))
		}()
	}
	all.Wait()
	printer := json.NewEncoder(os.Stdout)
	for _, w := range worlds {
		w.lock.Lock()
		for _, one := range w.lines {
			must(0, printer.Encode(one))
		}
		w.lock.Unlock()
	}
	fmt.Println(`{"scenario":"all","step":"ended","saw":true}`)
}
