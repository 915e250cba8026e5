//! A headless Chromium, and its DevTools.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use crate::{devtools::Devtools, waiting::until};

/// The longest time of a step of the browser, which needs seconds to start.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Programs that may be Chromium, the smallest first.
const NAMES: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// No sandbox, because tests run as root in containers; no dialogs and no reports; no requests to
/// other addresses; no throttling of background tabs; certificates that nobody trusts.
const FLAGS: [&str; 16] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--ignore-certificate-errors",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
    "--remote-debugging-port=0",
    "about:blank",
];

/// The browser, or the reason why there is none.
pub fn find() -> Result<PathBuf, String> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found =
        NAMES.iter().flat_map(|name| env::split_paths(&paths).map(move |folder| folder.join(name)));
    found
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| format!("there is none of {}", NAMES.join(", ")))
}

/// The browser also accepts commands on descriptor 3. No commands are sent there, but the browser
/// ends when the descriptor is closed, and thus when this program ends. The started program may be
/// a script that waits for the browser, so killing it would only end the script.
const WITH_LIFELINE: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

/// A running browser with its own profile. Dropping it ends the browser and removes the profile.
pub struct Browser {
    child: Child,
    profile: PathBuf,
    /// The `ws://` address of its DevTools.
    devtools: String,
}

impl Browser {
    /// Starts it, with its profile in this folder.
    pub fn start(program: &Path, folder: &Path) -> Self {
        let profile = folder.join(format!("chromium-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", WITH_LIFELINE]).arg(program);
        command.arg(format!("--user-data-dir={}", profile.display())).args(FLAGS);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("there is a shell");
        let errors = child.stderr.take().expect("piped");
        // The value is a `Browser` from here on, so that a panic ends the child.
        let mut browser = Self { child, profile, devtools: String::new() };
        browser.devtools = announced(errors);
        browser
    }

    /// Opens a new connection to the browser.
    pub fn connect(&self) -> Devtools {
        Devtools::connect(&self.devtools)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if thread::panicking() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        } else {
            until(
                || self.child.try_wait().expect("it is a child"),
                || "the browser's end".to_owned(),
            );
        }
        // Other processes of the browser may still write. The remaining files are in the target
        // directory.
        let _ = fs::remove_dir_all(&self.profile);
    }
}

/// Returns the address that the browser prints among its warnings. The rest is read and ignored, so
/// that the browser does not block.
fn announced(errors: impl std::io::Read + Send + 'static) -> String {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut said = Vec::new();
    loop {
        match lines.recv_timeout(WAIT_MAX) {
            Ok(line) => match line.strip_prefix("DevTools listening on ") {
                Some(address) => return address.trim().to_owned(),
                None => said.push(line),
            },
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                panic!("the browser names no address for its DevTools; it said {said:#?}")
            }
        }
    }
}
