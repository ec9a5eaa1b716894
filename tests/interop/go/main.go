// amqp091-go against a started node: AMQP_URL=... go run .; exits 0 and says how many checks held.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var url = os.Getenv("AMQP_URL")

func must(ok bool, format string, args ...any) {
	if !ok {
		panic(fmt.Sprintf(format, args...))
	}
}

func need[T any](value T, err error) T {
	must(err == nil, "%v", err)
	return value
}

func receive[T any](from <-chan T, what string) T {
	select {
	case value, open := <-from:
		must(open, "closed instead of %s", what)
		return value
	case <-time.After(10 * time.Second):
		panic("nothing came: " + what)
	}
}

func confirmed(ctx context.Context, ch *amqp.Channel) {
	must(ch.Confirm(false) == nil, "confirm")
	q := need(ch.QueueDeclare("go-confirmed", true, false, false, false, nil))
	need(ch.QueuePurge(q.Name, false))
	var pending []*amqp.DeferredConfirmation
	for i := 0; i < 500; i++ {
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(strconv.Itoa(i))}
		pending = append(pending, need(ch.PublishWithDeferredConfirmWithContext(ctx, "", q.Name, false, false, message)))
	}
	for _, one := range pending {
		must(need(one.WaitContext(ctx)), "nacked")
	}
	must(ch.Qos(50, 0, false) == nil, "qos")
	deliveries := need(ch.Consume(q.Name, "tag", false, false, false, false, nil))
	for i := 0; i < 500; i++ {
		d := receive(deliveries, "a delivery")
		must(string(d.Body) == strconv.Itoa(i), "%s is not %d", d.Body, i)
		if i%10 == 9 {
			must(d.Ack(true) == nil, "ack")
		}
	}
	must(ch.Cancel("tag", false) == nil, "cancel")
	must(need(ch.QueueDelete(q.Name, false, true, false)) == 0, "not empty")
}

func returned(ctx context.Context, ch *amqp.Channel) {
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	err := ch.PublishWithContext(ctx, "", "go-nowhere", true, false, amqp.Publishing{Body: []byte("x")})
	must(err == nil, "%v", err)
	must(receive(returns, "a return").ReplyCode == amqp.NoRoute, "reply code")
}

func properties(ctx context.Context, ch *amqp.Channel) {
	q := need(ch.QueueDeclare("", false, true, true, false, nil))
	sent := amqp.Publishing{
		Headers: amqp.Table{
			"int": int32(1), "long": int64(1) << 40, "float": 1.5, "text": "ü", "yes": true, "bytes": []byte{0, 255},
			"decimal": amqp.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1700000000, 0), "void": nil,
			"list": []any{int32(1), "a"}, "table": amqp.Table{"x": int16(2)},
		},
		ContentType: "text/plain", Priority: 3, CorrelationId: "c", ReplyTo: "r", Expiration: "60000", MessageId: "m",
		Timestamp: time.Unix(1700000000, 0), Type: "t", UserId: "guest", AppId: "a", Body: bytes.Repeat([]byte("x"), 300000),
	}
	must(ch.PublishWithContext(ctx, "", q.Name, false, false, sent) == nil, "publish")
	got, ok, err := ch.Get(q.Name, true)
	must(ok && err == nil, "get: %v %v", ok, err)
	must(bytes.Equal(got.Body, sent.Body), "body")
	must(fmt.Sprint(got.Headers) == fmt.Sprint(sent.Headers), "%v is not %v", got.Headers, sent.Headers)
	must(got.Timestamp.Equal(sent.Timestamp) && got.UserId == "guest" && got.Priority == 3, "properties")
}

func transaction(ctx context.Context, ch *amqp.Channel) {
	q := need(ch.QueueDeclare("", false, true, true, false, nil))
	must(ch.Tx() == nil, "tx")
	publish := func(body string) {
		must(ch.PublishWithContext(ctx, "", q.Name, false, false, amqp.Publishing{Body: []byte(body)}) == nil, "publish")
	}
	publish("rolled back")
	must(ch.TxRollback() == nil, "rollback")
	publish("committed")
	must(ch.TxCommit() == nil, "commit")
	got, ok, _ := ch.Get(q.Name, true)
	must(ok && string(got.Body) == "committed", "got %q", got.Body)
}

func exchanges(ctx context.Context, ch *amqp.Channel) {
	q := need(ch.QueueDeclare("", false, true, true, false, nil))
	must(ch.ExchangeDeclare("go-topic", "topic", false, true, false, false, nil) == nil, "topic")
	must(ch.ExchangeDeclare("go-fanout", "fanout", false, true, false, false, nil) == nil, "fanout")
	must(ch.QueueBind(q.Name, "", "go-fanout", false, nil) == nil, "bind")
	must(ch.ExchangeBind("go-fanout", "*.red.#", "go-topic", false, nil) == nil, "bind")
	for _, key := range []string{"a.red", "a.red.b.c", "a.b.red", "red"} {
		must(ch.PublishWithContext(ctx, "go-topic", key, false, false, amqp.Publishing{Body: []byte(key)}) == nil, "publish")
	}
	deliveries := need(ch.Consume(q.Name, "", true, false, false, false, nil))
	must(string(receive(deliveries, "a.red").Body) == "a.red", "order")
	must(string(receive(deliveries, "a.red.b.c").Body) == "a.red.b.c", "order")
}

func nacked(ctx context.Context, ch *amqp.Channel) {
	must(ch.Confirm(false) == nil, "confirm")
	q := need(ch.QueueDeclare("", false, true, true, false, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"}))
	for i, want := range []bool{true, false} {
		one := need(ch.PublishWithDeferredConfirmWithContext(ctx, "", q.Name, false, false, amqp.Publishing{}))
		must(need(one.WaitContext(ctx)) == want, "publish %d", i)
	}
	got, _, _ := ch.Get(q.Name, false)
	must(got.Nack(false, true) == nil, "nack")
	again, _, _ := ch.Get(q.Name, false)
	must(again.Redelivered, "redelivered")
	must(again.Reject(false) == nil, "reject")
}

func closed(_ context.Context, ch *amqp.Channel) {
	errs := ch.NotifyClose(make(chan *amqp.Error, 1))
	_, err := ch.QueueDeclarePassive("go-missing", false, false, false, false, nil)
	var refused *amqp.Error
	must(errors.As(err, &refused) && refused.Code == amqp.NotFound, "%v", err)
	must(receive(errs, "the close").Code == 404, "code")
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	checks := []func(context.Context, *amqp.Channel){
		confirmed, returned, properties, transaction, exchanges, nacked, closed,
	}
	for _, check := range checks {
		connection := need(amqp.DialConfig(url, amqp.Config{Heartbeat: 2 * time.Second}))
		check(ctx, need(connection.Channel()))
		must(connection.Close() == nil, "close")
	}
	_, err := amqp.Dial("amqp://guest:wrong@" + url[len("amqp://guest:guest@"):])
	must(errors.Is(err, amqp.ErrCredentials), "%v", err)
	fmt.Printf("amqp091-go: %d checks held\n", len(checks)+1)
}
