//! SIGHUP: reads the configuration again.
//!
//! All parts read and check their options first. Only if all of them are good, all are taken into
//! use. Options that no part takes keep their values until a restart.

use std::{cell::RefCell, collections::BTreeMap, ffi::OsString};

use clap::{ArgMatches, Command};

use super::args::ServeArgs;

/// The options of a server.
pub(crate) struct Configuration {
    pub(crate) args: Box<ServeArgs>,
    pub(crate) given: Given,
}

/// The values of the options, by their long names, as they were given or by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given(BTreeMap<String, Vec<OsString>>);

impl Given {
    pub(crate) fn new(command: &Command, matches: &ArgMatches) -> Self {
        let values = command.get_arguments().filter_map(|arg| {
            let values = matches.try_get_raw(arg.get_id().as_str()).ok()??;
            Some((arg.get_long()?.to_owned(), values.map(OsString::from).collect()))
        });
        Self(values.collect())
    }

    /// Returns the names of the options that differ.
    fn changed<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let names = self.0.iter().chain(&other.0).map(|(name, _)| name.as_str());
        let mut names: Vec<_> =
            names.filter(|name| self.0.get(*name) != other.0.get(*name)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Reads the configuration.
pub(crate) type ReadConfiguration = Box<dyn Fn() -> anyhow::Result<Configuration>>;

/// Takes prepared options into use.
pub(crate) type Apply = Box<dyn FnOnce()>;

/// Reads and checks options.
pub(crate) type Prepare = dyn Fn(&ServeArgs) -> anyhow::Result<Apply>;

/// A part of the server with options that may change.
pub(crate) struct Part {
    /// Their long names.
    pub(crate) options: &'static [&'static str],
    /// Reads and checks them, with the files that they name.
    pub(crate) prepare: Box<Prepare>,
}

/// Reads the configuration again.
pub(crate) struct Reloader {
    read: ReadConfiguration,
    parts: Vec<Part>,
    /// Is told of each attempt, whether it has succeeded.
    note: Box<dyn Fn(bool)>,
    /// The values in use.
    given: RefCell<Given>,
}

impl Reloader {
    pub(crate) fn new(
        read: ReadConfiguration,
        given: Given,
        parts: Vec<Part>,
        note: Box<dyn Fn(bool)>,
    ) -> Self {
        Self { read, parts, note, given: RefCell::new(given) }
    }

    /// Reads the configuration again. If it is good, it is taken into use. Either way one line says
    /// so.
    pub(crate) fn reload(&self) {
        let reloaded = self.try_reload();
        (self.note)(reloaded.is_ok());
        match reloaded {
            Ok(kept) if kept.is_empty() => tracing::info!("configuration reloaded"),
            Ok(kept) => tracing::warn!(
                kept = %kept.join(" "),
                "configuration reloaded; the values of some options are kept until a restart"
            ),
            Err(error) => tracing::error!(
                error = %one_line(&format!("{error:#}")),
                "configuration not reloaded; the old one stays in use"
            ),
        }
    }

    /// Returns the options that have changed and keep their values.
    fn try_reload(&self) -> anyhow::Result<Vec<String>> {
        let new = (self.read)()?;
        let prepared = self.parts.iter().map(|part| (part.prepare)(&new.args));
        for apply in prepared.collect::<anyhow::Result<Vec<_>>>()? {
            apply();
        }
        let mut given = self.given.borrow_mut();
        let is_taken = |name: &str| self.parts.iter().any(|part| part.options.contains(&name));
        let (taken, kept): (Vec<_>, Vec<_>) =
            given.changed(&new.given).into_iter().map(str::to_owned).partition(|n| is_taken(n));
        for name in taken {
            match new.given.0.get(&name) {
                Some(values) => given.0.insert(name, values.clone()),
                None => given.0.remove(&name),
            };
        }
        Ok(kept.iter().map(|name| format!("--{name}")).collect())
    }
}

/// Messages of parsers have several lines.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use anyhow::bail;
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn configuration(arguments: &[&str]) -> Configuration {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let matches = command.clone().get_matches_from([&["serve"], arguments].concat());
        let args = Box::new(ServeArgs::from_arg_matches(&matches).expect("they are valid"));
        Configuration { args, given: Given::new(&command, &matches) }
    }

    fn reloader(start: &[&str], now: &'static [&'static str], parts: Vec<Part>) -> Reloader {
        let read = Box::new(move || Ok(configuration(now)));
        Reloader::new(read, configuration(start).given, parts, Box::new(|_| {}))
    }

    /// A part that notes what it was given.
    fn part(options: &'static [&'static str], seen: &Rc<Cell<u32>>, is_good: bool) -> Part {
        let seen = Rc::clone(seen);
        let prepare = move |args: &ServeArgs| -> anyhow::Result<Apply> {
            if !is_good {
                bail!("a broken file");
            }
            let (seen, buffer) = (Rc::clone(&seen), args.buffer);
            Ok(Box::new(move || seen.set(buffer)))
        };
        Part { options, prepare: Box::new(prepare) }
    }

    #[test]
    fn a_broken_part_leaves_all_others_as_they_are() {
        let seen = Rc::default();
        let parts = vec![part(&["buffer"], &seen, true), part(&[], &seen, false)];
        let error = reloader(&[], &["--buffer", "7"], parts).try_reload().unwrap_err();
        assert_eq!((error.to_string().as_str(), seen.get()), ("a broken file", 0));
        let parts = vec![part(&["buffer"], &seen, true)];
        reloader(&[], &["--buffer", "7"], parts).try_reload().expect("all are good");
        assert_eq!(seen.get(), 7);
    }

    #[test]
    fn options_that_no_part_takes_are_named_until_they_are_as_at_the_start() {
        let seen = Rc::default();
        let now = &["--buffer", "7", "--workers", "3", "--pin", "--origin", "any"];
        let reloader = reloader(&["--memory", "5"], now, vec![part(&["buffer"], &seen, true)]);
        let kept = ["--memory", "--origin", "--pin", "--workers"];
        assert_eq!(reloader.try_reload().expect("it is good"), kept);
        assert_eq!(reloader.try_reload().expect("it is good"), kept, "they are kept still");
        assert_eq!(reloader.given.borrow().0["buffer"], ["7"]);
        assert_eq!(reloader.given.borrow().0["workers"], ["1"]);
    }

    #[test]
    fn a_message_takes_one_line() {
        assert_eq!(one_line("TOML parse error\n  |\n1 | x\n\n"), "TOML parse error | 1 | x");
    }
}
