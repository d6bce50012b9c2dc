package org.apache.pulsar.admin.cli;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import picocli.CommandLine;

/**
 * Many commands of `pulsar-admin` in one process. It lies in the tool's package, since the tool's command line is not
 * public.
 *
 *   AdminCommands catalogue            the groups and their commands, as JSON
 *   AdminCommands URL FILE SECONDS OUT runs each list of words in FILE and writes a line of JSON for each into OUT:
 *                                      exit code (-1: it did not end in SECONDS) and output
 */
public class AdminCommands {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int HUNG = -1;
    /** Apache's broker shows a topic's policy only when it has read its own event back. */
    private static final int SETTLE_MS = 200;

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("catalogue")) {
            System.out.println(JSON.writeValueAsString(catalogue()));
        } else {
            int seconds = Integer.parseInt(arguments[2]);
            PrintStream answers = new PrintStream(arguments[3], StandardCharsets.UTF_8);
            PulsarAdminTool tool = tool(arguments[0]);
            for (List<?> words : JSON.readValue(new File(arguments[1]), List[].class)) {
                Map<String, Object> answer = run(tool, words.toArray(new String[0]), seconds);
                answers.println(JSON.writeValueAsString(answer));
                answers.flush();
                if (answer.get("exit").equals(HUNG)) {
                    tool = tool(arguments[0]);
                }
            }
        }
        System.exit(0);
    }

    private static PulsarAdminTool tool(String url) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", url);
        properties.setProperty("webserviceTlsProvider", "");
        return new PulsarAdminTool(properties);
    }

    private static Map<String, Object> run(PulsarAdminTool tool, String[] words, int seconds) throws Exception {
        ByteArrayOutputStream said = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(said, true, StandardCharsets.UTF_8);
        AtomicReference<Integer> exit = new AtomicReference<>(HUNG);
        System.setOut(stream);
        System.setErr(stream);
        // Whoever is asked whether it is meant says yes; at the end of its input the tool would ask for ever.
        System.setIn(new ByteArrayInputStream("yes\n".getBytes(StandardCharsets.UTF_8)));
        tool.commander.setOut(new PrintWriter(stream, true));
        tool.commander.setErr(new PrintWriter(stream, true));
        Thread thread = new Thread(() -> exit.set(tool.run(words) ? 0 : 1));
        thread.setDaemon(true);
        thread.start();
        thread.join(TimeUnit.SECONDS.toMillis(seconds));
        if (words[0].equals("topicPolicies") && !words[1].startsWith("get-")) {
            Thread.sleep(SETTLE_MS);
        }
        return Map.of("exit", exit.get(), "said", said.toString(StandardCharsets.UTF_8));
    }

    private static Map<String, Map<String, List<String>>> catalogue() throws Exception {
        Map<String, Map<String, List<String>>> found = new TreeMap<>();
        for (Map.Entry<String, CommandLine> group : tool("http://127.0.0.1:1").commander.getSubcommands().entrySet()) {
            Map<String, List<String>> commands = new TreeMap<>();
            for (CommandLine command : group.getValue().getSubcommands().values()) {
                List<String> takes = new ArrayList<>();
                for (CommandLine.Model.ArgSpec one : command.getCommandSpec().args()) {
                    String name = one instanceof CommandLine.Model.OptionSpec
                            ? ((CommandLine.Model.OptionSpec) one).longestName() : one.paramLabel();
                    takes.add(one.required() ? name + "!" : name);
                }
                boolean hidden = command.getCommandSpec().usageMessage().hidden();
                if (!hidden) {
                    commands.put(command.getCommandName(), takes);
                }
            }
            if (!group.getValue().getCommandSpec().usageMessage().hidden()) {
                found.put(group.getValue().getCommandName(), commands);
            }
        }
        return found;
    }
}
