//! `--config FILE`: options in a file, by their names on the command line.
//!
//! The values go through the same parser as the command line, so the same checks and error messages
//! apply.

use std::{ffi::OsString, fs, path::Path};

use anyhow::{Context as _, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use toml::{Table, Value};

/// The option that names the file; a file cannot name another file.
pub(crate) const CONFIG: &str = "config";

/// The option that names a file to be checked.
pub(crate) const CHECK: &str = "check";

/// Returns the arguments that the file stands for, except those overridden by `given`, the command
/// line.
pub(crate) fn arguments(
    path: &Path,
    command: &Command,
    given: &ArgMatches,
) -> anyhow::Result<Vec<OsString>> {
    let read = || -> anyhow::Result<Vec<OsString>> {
        let text = fs::read_to_string(path)?;
        let table: Table = text.parse()?;
        let mut arguments = Vec::new();
        for (name, value) in &table {
            append(name, value, command, given, &mut arguments)?;
        }
        Ok(arguments)
    };
    read().with_context(|| format!("cannot use the configuration of {}", path.display()))
}

fn append(
    name: &str,
    value: &Value,
    command: &Command,
    given: &ArgMatches,
    arguments: &mut Vec<OsString>,
) -> anyhow::Result<()> {
    let is_named = |arg: &&Arg| arg.get_long() == Some(name);
    let known = command.get_arguments().find(is_named);
    let known = known.filter(|_| !matches!(name, CONFIG | CHECK));
    let Some(arg) = known else { bail!("there is no option `{name}`") };
    if given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) {
        return Ok(());
    }
    if let (ArgAction::SetTrue, Value::Boolean(on)) = (arg.get_action(), value) {
        arguments.extend(on.then(|| format!("--{name}").into()));
        return Ok(());
    }
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    match value {
        _ if is_flag => bail!("`{name}` is true or false"),
        Value::Array(values) if is_list => {
            for value in values {
                arguments.push(format!("--{name}={}", scalar(name, value)?).into());
            }
        }
        value => arguments.push(format!("--{name}={}", scalar(name, value)?).into()),
    }
    Ok(())
}

fn scalar(name: &str, value: &Value) -> anyhow::Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => bail!("`{name}` takes a string or a number, not {}", value.type_str()),
    }
}
