// Log in as the arguments say, use messages, JetStream and a bucket, and exit with 0 and "ok".
//
// With -refused the login must fail with that text instead.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const wait = 5 * time.Second

var (
	url         = flag.String("url", "", "server")
	name        = flag.String("name", "S", "stream and bucket to make")
	user        = flag.String("user", "", "user")
	password    = flag.String("password", "", "password")
	token       = flag.String("token", "", "token")
	seed        = flag.String("seed", "", "file with the seed of an nkey")
	creds       = flag.String("creds", "", "creds file")
	ca          = flag.String("ca", "", "authority of the server's certificate; turns on TLS")
	certificate = flag.String("certificate", "", "client certificate")
	key         = flag.String("key", "", "its key")
	first       = flag.Bool("first", false, "TLS handshake first")
	refused     = flag.String("refused", "", "text of the error with which the login must fail")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

func run() error {
	options, err := login()
	if err != nil {
		return err
	}
	client, err := nats.Connect(*url, options...)
	if *refused != "" {
		if err == nil {
			client.Close()
			return fmt.Errorf("the login was accepted")
		}
		// The server may have closed the connection between two writes of the client, which does not read then.
		said := strings.ToLower(err.Error())
		if strings.Contains(said, *refused) || strings.HasSuffix(said, "write: broken pipe") {
			return nil
		}
		return fmt.Errorf("refused with %q", err)
	}
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer client.Close()
	if err := messages(client); err != nil {
		return fmt.Errorf("messages: %w", err)
	}
	if err := streams(client); err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	return nil
}

func login() ([]nats.Option, error) {
	options := []nats.Option{nats.Timeout(wait), nats.NoReconnect()}
	if *user != "" {
		options = append(options, nats.UserInfo(*user, *password))
	}
	if *token != "" {
		options = append(options, nats.Token(*token))
	}
	if *seed != "" {
		option, err := nats.NkeyOptionFromSeed(*seed)
		if err != nil {
			return nil, err
		}
		options = append(options, option)
	}
	if *creds != "" {
		options = append(options, nats.UserCredentials(*creds))
	}
	if *ca != "" {
		config, err := secure()
		if err != nil {
			return nil, err
		}
		options = append(options, nats.Secure(config))
	}
	if *first {
		options = append(options, nats.TLSHandshakeFirst())
	}
	return options, nil
}

func secure() (*tls.Config, error) {
	pem, err := os.ReadFile(*ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", *ca)
	}
	if *certificate != "" {
		pair, err := tls.LoadX509KeyPair(*certificate, *key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func messages(client *nats.Conn) error {
	subscription, err := client.SubscribeSync("core.go")
	if err != nil {
		return err
	}
	sent := bytes.Repeat([]byte("x"), 100_000)
	if err := client.Publish("core.go", sent); err != nil {
		return err
	}
	got, err := subscription.NextMsg(wait)
	if err != nil {
		return err
	}
	if !bytes.Equal(got.Data, sent) {
		return fmt.Errorf("%d bytes came of %d", len(got.Data), len(sent))
	}
	return nil
}

func streams(client *nats.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	js, err := jetstream.New(client)
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: *name, Subjects: []string{*name + ".>"}}); err != nil {
		return err
	}
	ack, err := js.Publish(ctx, *name+".a", []byte("one"))
	if err != nil {
		return err
	}
	if ack.Sequence != 1 {
		return fmt.Errorf("sequence %d", ack.Sequence)
	}
	bucket, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: *name})
	if err != nil {
		return err
	}
	if _, err := bucket.Put(ctx, "key", []byte("value")); err != nil {
		return err
	}
	entry, err := bucket.Get(ctx, "key")
	if err != nil {
		return err
	}
	if string(entry.Value()) != "value" {
		return fmt.Errorf("the bucket has %q", entry.Value())
	}
	return nil
}
