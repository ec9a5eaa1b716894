import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.ConsumerBuilder;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Management;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Requester;
import com.rabbitmq.client.amqp.Responder;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's own client of AMQP 1.0 against a started node, whose setting amqp10.product is RabbitMQ. */
public final class Client {
  private static final long TIMEOUT_S = 20;
  private static final String RUN = "java-" + UUID.randomUUID();
  private static int checks = 0;

  private interface Check {
    void run(Connection connection, Management management) throws Exception;
  }

  /** A delivery, and what its consumer may do with it. */
  private record Got(Consumer.Context context, String body, Message message) {}

  private static void check(Environment environment, String name, Check check) {
    try (Connection connection = environment.connectionBuilder().build();
        Management management = connection.management()) {
      check.run(connection, management);
      checks++;
    } catch (Throwable error) {
      throw new AssertionError("RabbitMQ's client: " + name, error);
    }
  }

  private static void same(Object got, Object wanted) {
    if (!wanted.equals(got)) {
      throw new AssertionError(got + " and not " + wanted);
    }
  }

  private static Publisher.Status publish(Publisher publisher, String body) throws Exception {
    return publish(publisher, publisher.message(body.getBytes(StandardCharsets.UTF_8)));
  }

  private static Publisher.Status publish(Publisher publisher, Message message) throws Exception {
    CompletableFuture<Publisher.Status> outcome = new CompletableFuture<>();
    publisher.publish(message, context -> outcome.complete(context.status()));
    return outcome.get(TIMEOUT_S, TimeUnit.SECONDS);
  }

  private static BlockingQueue<Got> consume(ConsumerBuilder builder) {
    BlockingQueue<Got> got = new LinkedBlockingQueue<>();
    builder.messageHandler((context, message) ->
        got.add(new Got(context, new String(message.body(), StandardCharsets.UTF_8), message))).build();
    return got;
  }

  private static Got next(BlockingQueue<Got> got, String body) throws Exception {
    Got one = got.poll(TIMEOUT_S, TimeUnit.SECONDS);
    same(one == null ? null : one.body(), body);
    return one;
  }

  private static void declareAndBind(Connection connection, Management management) throws Exception {
    String exchange = RUN + "-exchange";
    String queue = RUN + "-bound";
    management.exchange(exchange).type(Management.ExchangeType.TOPIC).declare();
    Management.QueueInfo made = management.queue(queue).quorum().queue().declare();
    same(made.name(), queue);
    same(made.messageCount(), 0L);
    management.binding().sourceExchange(exchange).destinationQueue(queue).key("a.*").bind();
    try (Publisher publisher = connection.publisherBuilder().exchange(exchange).key("a.b").build();
        Publisher elsewhere = connection.publisherBuilder().exchange(exchange).key("c").build()) {
      same(publish(publisher, "bound"), Publisher.Status.ACCEPTED);
      same(publish(elsewhere, "lost"), Publisher.Status.RELEASED);
    }
    same(management.queueInfo(queue).messageCount(), 1L);
    same(management.queuePurge(queue).messageCount(), 1L);
    management.unbind().sourceExchange(exchange).destinationQueue(queue).key("a.*").unbind();
    management.queueDelete(queue);
    management.exchangeDelete(exchange);
    try {
      management.queueInfo(queue);
      throw new AssertionError("the queue is still there");
    } catch (AmqpException.AmqpEntityDoesNotExistException error) {
      same(error.getMessage() == null, false);
    }
  }

  private static void outcomes(Connection connection, Management management) throws Exception {
    String dead = RUN + "-dead";
    String queue = RUN + "-outcomes";
    management.queue(dead).declare();
    management.queue(queue).deadLetterExchange("").deadLetterRoutingKey(dead).declare();
    BlockingQueue<Got> letters = consume(connection.consumerBuilder().queue(dead));
    BlockingQueue<Got> got = consume(connection.consumerBuilder().queue(queue).initialCredits(1));
    try (Publisher publisher = connection.publisherBuilder().queue(queue).build()) {
      Message message = publisher.message("first".getBytes(StandardCharsets.UTF_8)).messageId(7L).subject("s");
      message.property("n", 7).annotation("x-own", "kept");
      same(publish(publisher, message), Publisher.Status.ACCEPTED);
      Got first = next(got, "first");
      same(first.message().messageIdAsLong(), 7L);
      same(first.message().property("n"), 7);
      same(first.message().annotation("x-own"), "kept");
      first.context().requeue();
      next(got, "first").context().accept();
      same(publish(publisher, "bad"), Publisher.Status.ACCEPTED);
      next(got, "bad").context().discard();
      next(letters, "bad").context().accept();
    }
    management.queueDelete(queue);
    management.queueDelete(dead);
  }

  private static void full(Connection connection, Management management) throws Exception {
    String queue = RUN + "-full";
    management.queue(queue).maxLength(1).overflowStrategy(Management.OverflowStrategy.REJECT_PUBLISH).declare();
    try (Publisher publisher = connection.publisherBuilder().queue(queue).build()) {
      same(publish(publisher, "in"), Publisher.Status.ACCEPTED);
      same(publish(publisher, "out"), Publisher.Status.REJECTED);
    }
    management.queueDelete(queue);
  }

  private static void stream(Connection connection, Management management) throws Exception {
    String stream = RUN + "-stream";
    management.queue(stream).stream().queue().declare();
    try (Publisher publisher = connection.publisherBuilder().queue(stream).build()) {
      for (int n = 0; n < 5; n++) {
        same(publish(publisher, Integer.toString(n)), Publisher.Status.ACCEPTED);
      }
    }
    BlockingQueue<Got> got = consume(connection.consumerBuilder().queue(stream).stream().offset(3).builder());
    next(got, "3").context().accept();
    Got last = next(got, "4");
    same(last.message().annotation("x-stream-offset").toString(), "4"); // an unsigned long
    last.context().accept();
    management.queueDelete(stream);
  }

  private static String read(Connection connection, String stream, int count, java.util.function.Consumer<ConsumerBuilder.StreamOptions> set)
      throws Exception {
    ConsumerBuilder builder = connection.consumerBuilder().queue(stream);
    set.accept(builder.stream());
    BlockingQueue<Got> got = new LinkedBlockingQueue<>();
    builder.messageHandler((context, message) ->
        got.add(new Got(context, new String(message.body(), StandardCharsets.UTF_8), message)));
    StringBuilder bodies = new StringBuilder();
    try (Consumer consumer = builder.build()) {
      for (int n = 0; n < count; n++) {
        Got one = got.poll(TIMEOUT_S, TimeUnit.SECONDS);
        if (one == null) {
          throw new AssertionError("only " + bodies + " came");
        }
        one.context().accept();
        bodies.append(one.body());
      }
    }
    return bodies.toString();
  }

  private static void streamFilters(Connection connection, Management management) throws Exception {
    String stream = RUN + "-filters";
    management.queue(stream).stream().queue().declare();
    Instant begin = Instant.now();
    try (Publisher publisher = connection.publisherBuilder().queue(stream).build()) {
      for (int n = 0; n < 10; n++) {
        Message message = publisher.message(Integer.toString(n).getBytes(StandardCharsets.UTF_8));
        message.subject(n % 2 == 0 ? "even" : "odd").messageId((long) n).creationTime(n).property("n", n);
        message.property("of", "k" + n % 3).annotation("x-stream-filter-value", n < 5 ? "low" : "high");
        same(publish(publisher, message), Publisher.Status.ACCEPTED);
      }
    }
    ConsumerBuilder.StreamOffsetSpecification first = ConsumerBuilder.StreamOffsetSpecification.FIRST;
    same(read(connection, stream, 10, s -> s.offset(first)), "0123456789");
    same(read(connection, stream, 1, s -> s.offset(ConsumerBuilder.StreamOffsetSpecification.LAST)).isEmpty(), false);
    same(read(connection, stream, 3, s -> s.offset(7)), "789");
    same(read(connection, stream, 10, s -> s.offset(begin.minusSeconds(60))), "0123456789");
    same(read(connection, stream, 5, s -> s.offset(first).filter().subject("odd")), "13579");
    same(read(connection, stream, 5, s -> s.offset(first).filter().subject("&p:ev")), "02468");
    same(read(connection, stream, 1, s -> s.offset(first).filter().messageId(4L)), "4");
    same(read(connection, stream, 3, s -> s.offset(first).filter().property("of", "k1")), "147");
    same(read(connection, stream, 2, s -> s.offset(first).filter().subject("odd").property("of", "k1")), "17");
    same(read(connection, stream, 3, s -> s.offset(first).filter().sql("p.subject = 'odd' AND a.n > 3")), "579");
    same(read(connection, stream, 10, s -> s.offset(first).filterValues("low", "high")), "0123456789");
    same(read(connection, stream, 5, s -> s.offset(first).filterValues("high").filterMatchUnfiltered(true)), "56789");
    management.queueDelete(stream);
  }

  private static void activity(Connection connection, Management management) throws Exception {
    String queue = RUN + "-active";
    management.queue(queue).singleActiveConsumer(true).declare();
    BlockingQueue<Got> one = consume(connection.consumerBuilder().queue(queue));
    BlockingQueue<Got> two = consume(connection.consumerBuilder().queue(queue).priority(5));
    try (Publisher publisher = connection.publisherBuilder().queue(queue).build()) {
      same(publish(publisher, "x"), Publisher.Status.ACCEPTED);
    }
    next(two, "x").context().accept();
    same(one.size(), 0);
    management.queueDelete(queue);
  }

  private static void requestAndReply(Connection connection, Management management) throws Exception {
    String requests = RUN + "-requests";
    String answers = RUN + "-answers";
    management.queue(requests).declare();
    management.queue(answers).declare();
    try (Responder responder = connection.responderBuilder().requestQueue(requests)
            .handler((context, request) -> context.message(("re: " + new String(request.body())).getBytes())).build();
        Requester requester = connection.requesterBuilder().requestAddress().queue(requests).requester()
            .replyToQueue(answers).build()) {
      Message answer = requester.publish(requester.message("q".getBytes())).get(TIMEOUT_S, TimeUnit.SECONDS);
      same(new String(answer.body(), StandardCharsets.UTF_8), "re: q");
    }
    management.queueDelete(requests);
    management.queueDelete(answers);
  }

  public static void main(String[] arguments) {
    try (Environment environment =
        new AmqpEnvironmentBuilder().connectionSettings().uri(System.getenv("AMQP_URL")).environmentBuilder().build()) {
      check(environment, "declare and bind", Client::declareAndBind);
      check(environment, "outcomes", Client::outcomes);
      check(environment, "a full queue", Client::full);
      check(environment, "stream", Client::stream);
      check(environment, "filters of a stream", Client::streamFilters);
      check(environment, "single active consumer", Client::activity);
      check(environment, "request and reply", Client::requestAndReply);
    }
    System.out.println("RabbitMQ's client: " + checks + " checks held");
    System.exit(0);
  }
}
