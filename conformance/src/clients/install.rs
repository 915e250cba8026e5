//! Installs the libraries into a folder of the user's cache, in the versions of the lock files.

use std::{
    ffi::OsString,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};

/// The variable of OpenSSL and of Go.
const OPENSSL_AUTHORITIES: &str = "SSL_CERT_FILE";

/// The command of a client.
#[derive(Debug, Clone)]
pub(super) struct ClientProgram {
    program: PathBuf,
    arguments: Vec<OsString>,
    variable: Option<(&'static str, PathBuf)>,
    /// The variable that names the file with the authorities that it trusts.
    authorities: &'static str,
}

impl ClientProgram {
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(arguments)
            .envs(self.variable.iter().map(|(name, value)| (name, value)));
        command
    }

    /// The same, and it trusts the authority in this file.
    pub(super) fn command_trusting(&self, authority: &Path, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env(self.authorities, authority);
        command
    }
}

/// A program, or the reason why it cannot be installed on this machine.
pub(super) type InstalledClient = Result<ClientProgram, String>;

/// Installs the client with this name.
///
/// # Errors
///
/// If a download is wrong, for example if its hash differs from that in the lock file.
pub(super) fn install(name: &str, root: &Path, output: &Path) -> Result<InstalledClient> {
    let source = root.join("conformance/clients").join(name);
    match name {
        "python" => python(&source),
        "node" => node(&source),
        "go" => go(&source, output),
        "perl" => script(&source, "perl", "echo.pl", &["-MMojolicious", "-MIO::Socket::SSL"]),
        "ruby" => script(&source, "ruby", "echo.rb", &["-rwebsocket/driver", "-ropenssl"]),
        other => bail!("there is no client in {other}"),
    }
}

fn python(source: &Path) -> Result<InstalledClient> {
    let locks = ["requirements.txt"];
    let packages = once(&cache("python")?, source, &locks, |folder| {
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
            "--require-hashes",
        ]);
        pip.args(["--only-binary", ":all:", "--root-user-action", "ignore", "--target"])
            .arg(folder);
        pip.arg("--requirement").arg(folder.join("requirements.txt"));
        pip
    })?;
    Ok(packages.map(|packages| ClientProgram {
        program: "python3".into(),
        arguments: vec![source.join("client.py").into()],
        variable: Some(("PYTHONPATH", packages)),
        authorities: OPENSSL_AUTHORITIES,
    }))
}

fn node(source: &Path) -> Result<InstalledClient> {
    let locks = ["package.json", "package-lock.json"];
    let packages = once(&cache("node")?, source, &locks, |folder| {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"])
            .current_dir(folder);
        npm
    })?;
    Ok(packages.map(|packages| ClientProgram {
        program: "node".into(),
        arguments: vec![source.join("client.js").into()],
        variable: Some(("NODE_PATH", packages.join("node_modules"))),
        authorities: "NODE_EXTRA_CA_CERTS",
    }))
}

/// The sources are in Go's own module cache. The program is built in the folder of the logs.
fn go(source: &Path, output: &Path) -> Result<InstalledClient> {
    let go = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(source);
        // Go must not download another toolchain, and must not write the lock file.
        command.envs([
            ("GOTOOLCHAIN", "local"),
            ("GOFLAGS", "-mod=readonly"),
            ("GOWORK", "off"),
            ("CGO_ENABLED", "0"),
        ]);
        command
    };
    if let Err(reason) = fetch(&mut go(&["mod", "download"]))? {
        return Ok(Err(reason));
    }
    let program = output.join("go-client");
    let built = go(&["build", "-o"])
        .arg(&program)
        .arg(".")
        .stdin(Stdio::null())
        .status()
        .context("cannot start go")?;
    ensure!(built.success(), "go cannot build {}", source.display());
    let authorities = OPENSSL_AUTHORITIES;
    Ok(Ok(ClientProgram { program, arguments: Vec::new(), variable: None, authorities }))
}

/// A program whose libraries are those of the distribution.
fn script(source: &Path, program: &str, file: &str, libraries: &[&str]) -> Result<InstalledClient> {
    if let Err(reason) = fetch(Command::new(program).args(libraries).args(["-e", "1"]))? {
        return Ok(Err(reason));
    }
    Ok(Ok(ClientProgram {
        program: program.into(),
        arguments: vec![source.join(file).into()],
        variable: None,
        authorities: OPENSSL_AUTHORITIES,
    }))
}

fn cache(name: &str) -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(home);
    Ok(cache
        .context("there is neither HOME nor XDG_CACHE_HOME")?
        .join("windlass/clients")
        .join(name))
}

/// Returns the folder into which `command` installs by the lock files, which it finds there. An
/// installation from the same lock files is kept.
fn once(
    folder: &Path,
    source: &Path,
    locks: &[&str],
    command: impl Fn(&Path) -> Command,
) -> Result<Result<PathBuf, String>> {
    let is_same = |lock: &&str| {
        let read = |folder: &Path| fs::read(folder.join(lock)).ok();
        read(source).is_some_and(|text| read(folder) == Some(text))
    };
    if locks.iter().all(is_same) {
        return Ok(Ok(folder.to_owned()));
    }
    // An incomplete installation must not be used by the next run.
    let new = folder.with_extension("new");
    for old in [folder, &new] {
        match fs::remove_dir_all(old) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                bail!("{}: {error}", old.display())
            }
            _ => {}
        }
    }
    fs::create_dir_all(&new).with_context(|| new.display().to_string())?;
    for lock in locks {
        fs::copy(source.join(lock), new.join(lock)).with_context(|| (*lock).to_owned())?;
    }
    if let Err(reason) = fetch(&mut command(&new))? {
        return Ok(Err(reason));
    }
    fs::rename(&new, folder).with_context(|| folder.display().to_string())?;
    Ok(Ok(folder.to_owned()))
}

/// Messages of installers about a file that does not match the lock file, which is a fault. Other
/// errors are caused by the machine or the network.
const WRONG_FILE: [&str; 5] = [
    "DO NOT MATCH THE HASHES",
    "EINTEGRITY",
    "checksum mismatch",
    "SECURITY ERROR",
    "can only install packages when",
];

/// Runs an installer. The inner error is the reason why it cannot install here.
fn fetch(command: &mut Command) -> Result<Result<(), String>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Err(format!("there is no {name}")));
        }
        output => output.with_context(|| format!("cannot start {name}"))?,
    };
    let said = [output.stdout, output.stderr]
        .map(|said| String::from_utf8_lossy(&said).into_owned())
        .join("\n");
    if output.status.success() {
        return Ok(Ok(()));
    }
    eprint!("{said}");
    ensure!(
        !WRONG_FILE.iter().any(|mark| said.contains(mark)),
        "{name} got something else than the lock file names"
    );
    // The last lines of npm name its log file.
    let is_reason = |line: &&str| !line.is_empty() && !line.contains("A complete log of this run");
    let reason = said.lines().map(str::trim).rfind(is_reason).unwrap_or("it gives no reason");
    Ok(Err(format!("{name}: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn an_impossible_installation_is_no_fault() {
        assert_eq!(fetch(&mut shell("true")).expect("no fault"), Ok(()));
        let missing = fetch(&mut Command::new("windlass-has-no-such-program")).expect("no fault");
        assert_eq!(missing, Err("there is no windlass-has-no-such-program".to_owned()));
        let said = "echo no network >&2; echo >&2; \
                    echo npm error A complete log of this run can be found in: x >&2; exit 1";
        let unreachable = fetch(&mut shell(said)).expect("no fault");
        assert_eq!(unreachable, Err("sh: no network".to_owned()));
        fetch(&mut shell("echo npm error code EINTEGRITY; exit 1"))
            .expect_err("another file is a fault");
    }

    #[test]
    fn what_is_installed_is_kept_until_the_lock_file_changes() {
        let place = std::env::temp_dir().join(format!("windlass-install-{}", std::process::id()));
        let (source, folder) = (place.join("source"), place.join("folder"));
        fs::create_dir_all(&source).expect("the temporary folder can be written to");
        fs::write(source.join("lock"), "one").expect("likewise");
        let install = |script: &'static str| {
            let command = |folder: &Path| {
                let mut command = shell(script);
                command.current_dir(folder);
                command
            };
            once(&folder, &source, &["lock"], command).expect("no fault")
        };
        assert_eq!(install("exit 1"), Err("sh: it gives no reason".to_owned()));
        assert_eq!(install("cp lock installed"), Ok(folder.clone()));
        assert_eq!(install("exit 1"), Ok(folder.clone()), "it is kept");
        fs::write(source.join("lock"), "two").expect("likewise");
        assert_eq!(install("cp lock installed"), Ok(folder.clone()));
        assert_eq!(fs::read_to_string(folder.join("installed")).expect("it is there"), "two");
        fs::remove_dir_all(place).expect("it can be removed");
    }
}
