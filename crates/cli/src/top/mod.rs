//! `windlass top`: a live view of a running server in a terminal.
//!
//! It reads `/status` of the server's admin listener. If its input is a terminal too, it lists
//! connections and takes keys. Three ANSI control sequences suffice, and no crate for terminals.

mod client;
mod connections;
mod status;
mod terminal;
mod view;

use std::{
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use windlass_tls::TlsConnector;

use self::{
    client::{AdminClient, AdminUrl},
    connections::{Asked, Connections},
    status::Status,
    terminal::{Came, Terminal, next_read},
    view::View,
};

/// Options of `windlass top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// The server's admin listener (`windlass serve --admin`): http://ADDR:PORT, https://ADDR:PORT
    /// or unix:PATH
    #[arg(value_name = "URL")]
    url: AdminUrl,

    /// File with the bearer token of the admin listener
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// With https://, trust the certificates in this PEM file, of authorities or of the server
    /// itself [default: those of the system]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// With https://, accept any certificate. For tests: whoever is between this program and the
    /// server can then read and change everything
    #[arg(long, conflicts_with = "cacert")]
    insecure: bool,

    /// Seconds between two reads
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,

    /// End after so many reads [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    samples: Option<u32>,
}

/// Moves the cursor to the upper left corner.
const HOME: &str = "\x1b[H";
/// Clears the rest of a line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears the rest of the screen.
const CLEAR_BELOW: &str = "\x1b[J";

/// Returns what asks the listener.
fn client(args: &TopArgs) -> anyhow::Result<AdminClient> {
    let token = args.token_file.as_ref().map(|path| {
        let text = fs::read_to_string(path);
        text.with_context(|| format!("cannot read --token-file {}", path.display()))
    });
    let token = token.transpose()?.map(|text| text.trim_end().to_owned());
    let has_tls = matches!(args.url, AdminUrl::Tls(_));
    ensure!(
        has_tls || args.cacert.is_none() && !args.insecure,
        "--cacert and --insecure need https://"
    );
    let builder = TlsConnector::builder().alpn([b"http/1.1"]);
    let builder = match &args.cacert {
        Some(path) => builder.roots(path),
        None if args.insecure => builder.insecure(),
        None => builder,
    };
    let tls = has_tls.then(|| builder.build()).transpose();
    let tls = tls.context("cannot use TLS; --cacert FILE names the certificates to trust")?;
    Ok(AdminClient { url: args.url.clone(), token, tls })
}

/// Shows the server. In a terminal, each view replaces the previous one. Elsewhere a view is one
/// line, under a headline. If the input is a terminal too, the view lists connections, and keys
/// change the list and disconnect clients.
///
/// The first read must succeed. A later one may fail, because servers are restarted: the reason is
/// shown instead, and the next read is tried.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let client = client(args)?;
    let is_terminal = io::stdout().is_terminal();
    if is_terminal && io::stdin().is_terminal() {
        return run_with_keys(args, &client);
    }
    let mut before: Option<(Status, Instant)> = None;
    for number in 1_u64.. {
        let read = client.get("/status").and_then(|text| Status::parse(&text));
        let now = Instant::now();
        let text = match &read {
            Err(_) if number == 1 => return read.map(drop),
            Err(error) => {
                let text = format!("{error:#}; trying again");
                if is_terminal {
                    screen(&[text])
                } else {
                    eprintln!("windlass: {text}");
                    String::new()
                }
            }
            Ok(status) => {
                // The counts of a server that was restarted begin anew.
                before = before.filter(|(old, _)| old.uptime_seconds <= status.uptime_seconds);
                let before = before.as_ref().map(|(status, at)| (status, now - *at));
                let view = View::new(status, before);
                match (is_terminal, number == 1) {
                    (true, _) => screen(&view.lines()),
                    (false, true) => format!("{}\n{}\n", View::HEADLINE, view.line()),
                    (false, false) => format!("{}\n", view.line()),
                }
            }
        };
        if let Err(error) = write(&text) {
            // `windlass top URL | head` closes its end early.
            return if error.kind() == io::ErrorKind::BrokenPipe {
                Ok(())
            } else {
                Err(error.into())
            };
        }
        if args.samples.is_some_and(|samples| u64::from(samples) == number) {
            break;
        }
        before = read.ok().map(|status| (status, now));
        // sleep: the interval between two reads.
        thread::sleep(Duration::from_secs(args.interval.into()));
    }
    Ok(())
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The same with a list of connections, and with keys.
fn run_with_keys(args: &TopArgs, client: &AdminClient) -> anyhow::Result<()> {
    let mut connections = Connections::new();
    let mut before: Option<(Status, Instant)> = None;
    let mut terminal: Option<Terminal> = None;
    for number in 1_u64.. {
        let read = client.get("/status").and_then(|text| Status::parse(&text));
        let now = Instant::now();
        let mut lines = match &read {
            // The terminal is as it was.
            Err(_) if number == 1 => return read.map(drop),
            Err(error) => vec![format!("{error:#}; trying again")],
            Ok(status) => {
                before = before.filter(|(old, _)| old.uptime_seconds <= status.uptime_seconds);
                let before = before.as_ref().map(|(status, at)| (status, now - *at));
                View::new(status, before).lines()
            }
        };
        let terminal = match &mut terminal {
            Some(terminal) => terminal,
            none => none.insert(Terminal::open().context("cannot read keys")?),
        };
        let head = lines.len();
        let until = next_read(args.interval);
        let mut is_due = read.is_ok();
        loop {
            if is_due {
                let listed = client.get(&connections.path());
                if let Err(error) = listed.and_then(|text| connections.take(&text)) {
                    connections.tell(format!("{error:#}"));
                }
            }
            lines.truncate(head);
            lines.extend(connections.lines());
            write(&screen_above(&lines, &connections.last_line()))?;
            if args.samples.is_some_and(|samples| u64::from(samples) == number) {
                return Ok(write("\n")?);
            }
            let keys = match terminal.wait(until)? {
                Came::Keys(keys) => keys,
                Came::Nothing if Instant::now() >= until => break,
                Came::Nothing => String::new(),
                Came::End => return Ok(write("\n")?),
            };
            is_due = match connections.on_keys(&keys) {
                Asked::Quit => return Ok(write("\n")?),
                Asked::Nothing => false,
                Asked::List => true,
                Asked::Disconnect(path) => {
                    connections.tell(match client.post(&path) {
                        Ok(answer) => answer.trim_end().to_owned(),
                        Err(error) => format!("{error:#}"),
                    });
                    true
                }
            };
        }
        before = read.ok().map(|status| (status, now));
    }
    Ok(())
}

/// Returns the lines as one screen, and a line that stays below them.
fn screen_above(lines: &[String], last: &str) -> String {
    let rows = rustix::termios::tcgetwinsize(io::stdout()).map_or(24, |size| size.ws_row.into());
    let rows = if rows == 0 { lines.len() + 1 } else { rows };
    let shown = &lines[..lines.len().min(rows.saturating_sub(1))];
    screen(&[shown, &[last.to_owned()]].concat())
}

/// Returns the lines as one screen, each cut to the width of the terminal.
fn screen(lines: &[String]) -> String {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    let (columns, rows) =
        size.map_or((80, 24), |size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    // A terminal that does not know its size reports zeros.
    let columns = if columns == 0 { 80 } else { columns };
    let rows = if rows == 0 { usize::MAX } else { rows };
    let mut text = HOME.to_owned();
    for (index, line) in lines.iter().take(rows).enumerate() {
        if index > 0 {
            text.push('\n');
        }
        // All characters are one column wide.
        text.extend(line.chars().take(columns));
        text.push_str(CLEAR_LINE);
    }
    text + CLEAR_BELOW
}
