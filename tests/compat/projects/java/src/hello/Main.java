package hello;

import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;
import java.util.stream.IntStream;

/** Threads, files, a child process, a socket on the loopback interface. */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws Exception {
        var pool = Executors.newFixedThreadPool(4);
        int sum = 0;
        for (var part : pool.invokeAll(IntStream.range(0, 50).mapToObj(Main::square).toList())) {
            sum += part.get();
        }
        pool.shutdown();
        System.out.println("threads " + sum);
        System.out.println("parallel " + IntStream.range(0, 100_000).parallel().filter(i -> i % 7 == 0).count());
        var child = new ProcessBuilder("sh", "-c", "cat; exit 9").redirectErrorStream(true).start();
        child.getOutputStream().write("to a child".getBytes());
        child.getOutputStream().close();
        System.out.println(new String(child.getInputStream().readAllBytes()) + " " + child.waitFor());
        var file = Files.createTempFile("hello", ".txt");
        Files.writeString(file, "text");
        System.out.println(Files.readString(file) + " " + Files.deleteIfExists(file));
        Files.writeString(Path.of("made.txt"), "made");
        try (var server = new ServerSocket(0, 1, java.net.InetAddress.getLoopbackAddress());
                var client = new Socket(server.getInetAddress(), server.getLocalPort());
                var served = server.accept()) {
            served.getOutputStream().write(7);
            System.out.println("socket " + client.getInputStream().read());
        }
        System.exit(3);
    }

    private static java.util.concurrent.Callable<Integer> square(int number) {
        return () -> number * number;
    }
}
