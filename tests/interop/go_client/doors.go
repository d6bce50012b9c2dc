package main

import (
	"fmt"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// door tries to come in once and prints how that ended: "OK", or the error.
func door(url string, kind string, arguments []string) {
	options := pulsar.ClientOptions{URL: url, OperationTimeout: 5 * time.Second, ConnectionTimeout: 5 * time.Second, Logger: logger(),
		TLSTrustCertsFilePath: os.Getenv("GO_CLIENT_TRUST"), TLSValidateHostname: os.Getenv("GO_CLIENT_HOSTNAME") != ""}
	var err error
	switch kind {
	case "none":
	case "token":
		options.Authentication = pulsar.NewAuthenticationToken(arguments[0])
	case "file":
		options.Authentication = pulsar.NewAuthenticationTokenFromFile(arguments[0])
	case "supplier":
		options.Authentication = pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) { return arguments[0], nil })
	case "tls":
		options.Authentication = pulsar.NewAuthenticationTLS(arguments[0], arguments[1])
	case "basic":
		options.Authentication, err = pulsar.NewAuthenticationBasic(arguments[0], arguments[1])
	}
	if err == nil {
		err = comeIn(options)
	}
	if err != nil {
		fmt.Println(said(err))
		return
	}
	fmt.Println("OK")
}

func comeIn(options pulsar.ClientOptions) error {
	client, err := pulsar.NewClient(options)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "persistent://public/default/door"})
	if err != nil {
		return err
	}
	_, err = producer.Send(background, &pulsar.ProducerMessage{Payload: []byte("x")})
	return err
}
