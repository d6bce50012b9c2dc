// A program for the topic API with code generated from topics.proto, each step checked; prints a line per step that held.
//
//	protoc -I../../../magnetar/client --go_out=api --go_opt=paths=source_relative \
//	    --go-grpc_out=api --go-grpc_opt=paths=source_relative topics.proto
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	api "magnetar.example/topics/api"
)

const (
	topic    = "go"
	messages = 3000
	perFrame = 500
	keys     = 7
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func try(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func check(holds bool, what string) {
	if !holds {
		log.Fatal("does not hold: ", what)
	}
	fmt.Println("HELD", what)
}

func dial(address string) api.TopicsClient {
	return api.NewTopicsClient(must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))))
}

// owner finds the broker that serves the topic, as every client has to.
func owner(ctx context.Context, address string) api.TopicsClient {
	request := &api.LookupRequest{Topic: topic}
	for range 20 {
		found := must(dial(address).Lookup(ctx, request))
		address = found.Address
		if !found.AskThere {
			return dial(address)
		}
		request.Authoritative = found.Authoritative
	}
	log.Fatal("sent on too often")
	return nil
}

func publish(ctx context.Context, client api.TopicsClient) []*api.MessageId {
	call := must(client.Publish(ctx))
	try(call.Send(&api.PublishRequest{Open: &api.PublishRequest_Open{Topic: topic, ProducerName: "go"}}))
	opened := must(call.Recv()).Opened
	check(opened.GetProducerName() == "go" && opened.MaxMessageBytes > 1<<20, "a producer is opened under its name")
	for first := 0; first < messages; first += perFrame {
		request := &api.PublishRequest{FirstSequenceId: uint64(first)}
		for number := first; number < first+perFrame; number++ {
			key := fmt.Sprint("k", number%keys)
			request.Messages = append(request.Messages, &api.Message{
				Payload: []byte(fmt.Sprint("m", number)), Key: &key, EventTimeMs: int64(1000 + number),
				Properties: map[string]string{"n": fmt.Sprint(number)},
			})
		}
		try(call.Send(request))
	}
	try(call.CloseSend())
	ids := make([]*api.MessageId, messages)
	for {
		answer, err := call.Recv()
		if err == io.EOF {
			break
		}
		try(err)
		for _, receipt := range answer.Receipts {
			for at := range receipt.Count {
				ids[receipt.FirstSequenceId+uint64(at)] = receipt.FirstId
			}
		}
	}
	for _, id := range ids {
		if id == nil {
			log.Fatal("a message has no receipt")
		}
	}
	check(true, "after a half-close every message has its receipt, and the call ends in order")
	return ids
}

type taken struct {
	message *api.Message
	id      *api.MessageId
}

// consume takes count messages and leaves the call open.
func consume(ctx context.Context, client api.TopicsClient, kind api.SubscriptionType, count int) (api.Topics_ConsumeClient, []taken) {
	call := must(client.Consume(ctx))
	try(call.Send(&api.ConsumeRequest{Open: &api.ConsumeRequest_Open{
		Topic: topic, Subscription: "s", Type: kind, FromEarliest: true}}))
	must(call.Recv())
	try(call.Send(&api.ConsumeRequest{Permits: int32(count)}))
	var found []taken
	for len(found) < count {
		for _, delivery := range must(call.Recv()).Deliveries {
			for _, message := range delivery.Messages {
				id := &api.MessageId{LedgerId: delivery.LedgerId, EntryId: delivery.EntryId}
				if delivery.BatchSize > 0 {
					id.BatchIndex, id.BatchSize = &message.BatchIndex, delivery.BatchSize
				}
				found = append(found, taken{message, id})
			}
		}
	}
	return call, found
}

// done waits until a request took effect.
func done(call api.Topics_ConsumeClient, request *api.ConsumeRequest) {
	request.RequestId = 1
	try(call.Send(request))
	for {
		if answer := must(call.Recv()); answer.Done == 1 {
			check(answer.Error == "", "a request with an id is answered when it took effect "+answer.Error)
			return
		}
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := owner(ctx, os.Args[1])
	check(must(client.GetTopic(ctx, &api.GetTopicRequest{Topic: topic, Create: true})).Partitions == 0, "the topic is found")
	ids := publish(ctx, client)
	last := must(client.GetLastMessageId(ctx, &api.GetLastMessageIdRequest{Topic: topic})).Id
	check(last.LedgerId == ids[messages-1].LedgerId && last.EntryId == ids[messages-1].EntryId, "the last id is that of the last message")

	call, found := consume(ctx, client, api.SubscriptionType_KEY_SHARED, messages)
	check(len(found) == messages, "no more comes than permits were given")
	next := map[string]int{}
	for key := range keys {
		next[fmt.Sprint("k", key)] = key
	}
	for _, one := range found {
		number := next[one.message.GetKey()]
		if string(one.message.Payload) != fmt.Sprint("m", number) || one.message.Properties["n"] != fmt.Sprint(number) ||
			one.message.EventTimeMs != int64(1000+number) || one.message.SequenceId != uint64(number) ||
			one.id.LedgerId != ids[number].LedgerId || one.id.EntryId != ids[number].EntryId {
			log.Fatal("not what was sent as ", number, ": ", one.message)
		}
		next[one.message.GetKey()] = number + keys
	}
	check(true, "payload, key, properties, time and id of every message are those that were sent, in order for each key")
	request := &api.ConsumeRequest{}
	for _, one := range found[:messages-10] {
		request.Acks = append(request.Acks, one.id)
	}
	done(call, request)
	try(call.CloseSend())
	for {
		if _, err := call.Recv(); err == io.EOF {
			break
		} else {
			try(err)
		}
	}
	_, again := consume(ctx, client, api.SubscriptionType_KEY_SHARED, 10)
	for at, one := range again {
		if string(one.message.Payload) != string(found[messages-10+at].message.Payload) {
			log.Fatal("acknowledged, and came again: ", one.message)
		}
	}
	check(true, "what was not acknowledged comes again, and nothing else")

	refused := must(client.Consume(ctx))
	try(refused.Send(&api.ConsumeRequest{Open: &api.ConsumeRequest_Open{Topic: topic, Subscription: "s"}}))
	_, err := refused.Recv()
	check(status.Code(err) == codes.AlreadyExists && strings.Contains(err.Error(), "public/default/"+topic), "a refusal has a status and names the topic: "+status.Convert(err).Message())
	fmt.Println("END")
}
