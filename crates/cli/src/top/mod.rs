//! `windlass top`: a live view of a running server in a terminal.
//!
//! It reads `/status` of the server's admin listener. It takes no input and needs no other mode of
//! the terminal, so two ANSI control sequences suffice, and no crate for terminals.

mod client;
mod status;
mod view;

use std::{
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use self::{client::AdminUrl, status::Status, view::View};

/// Options of `windlass top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// The server's admin listener (`windlass serve --admin`): http://ADDR:PORT or unix:PATH
    #[arg(value_name = "URL")]
    url: AdminUrl,

    /// File with the bearer token of the admin listener
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

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

/// Shows the server. In a terminal, each view replaces the previous one. Elsewhere a view is one
/// line, under a headline.
///
/// The first read must succeed. A later one may fail, because servers are restarted: the reason is
/// shown instead, and the next read is tried.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let token = args.token_file.as_ref().map(|path| {
        let text = fs::read_to_string(path);
        text.with_context(|| format!("cannot read --token-file {}", path.display()))
    });
    let token = token.transpose()?;
    let token = token.as_deref().map(str::trim_end);
    let is_terminal = io::stdout().is_terminal();
    let mut before: Option<(Status, Instant)> = None;
    for number in 1_u64.. {
        let read = args.url.get("/status", token).and_then(|text| Status::parse(&text));
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
