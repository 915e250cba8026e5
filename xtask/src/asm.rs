//! `cargo xtask asm`: the disassembly of a hot path. It contains no addresses, so it is the same
//! from build to build. A document can quote it, and a diff shows what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::command::Cmd;
use crate::output;
use crate::repository;

/// A hot path that can be disassembled.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum HotPath {
    /// The loop over one batch of events, and the function that it calls for one of them.
    Dispatch,
}

/// The program and the functions of a hot path.
struct Place {
    package: &'static str,
    example: &'static str,
    /// Each function must exist. It is given by the beginning of its demangled name and a part of
    /// the rest.
    symbols: &'static [(&'static str, &'static str)],
}

impl HotPath {
    fn place(self) -> Place {
        match self {
            Self::Dispatch => Place {
                package: "windlass-examples",
                example: "asm_probe",
                symbols: &[
                    ("windlass::kernel::dispatch::dispatch_batch", ""),
                    ("windlass::cell::dispatch::<", "asm_probe::"),
                ],
            },
        }
    }
}

/// Builds the probe, disassembles it and prints the functions of the path. Returns whether all of
/// them were found.
///
/// # Errors
///
/// If the probe does not build or objdump is missing.
pub(crate) fn run(what: HotPath, profile: &str) -> Result<bool> {
    let root = repository::root();
    let place = what.place();
    let program = build(&root, &place, profile)?;
    let listing = disassemble(&program)?;
    let functions = functions(&listing);
    let mut complete = true;
    for (start, part) in place.symbols {
        let matching: Vec<&Function<'_>> =
            functions.iter().filter(|function| is_wanted(function.name, start, part)).collect();
        if matching.is_empty() {
            complete = false;
            eprintln!("xtask: no function `{start}…{part}…` in {}", place.example);
            for near in functions.iter().filter(|f| f.name.contains("dispatch")) {
                eprintln!("xtask: there is `{}`", near.name);
            }
        }
        for function in matching {
            output::print(&format!("{}\n", function.print()));
        }
    }
    Ok(complete)
}

fn is_wanted(name: &str, start: &str, part: &str) -> bool {
    name.strip_prefix(start).is_some_and(|rest| rest.contains(part))
}

/// Builds the probe and returns the program's path. The path comes from cargo's messages, so any
/// target directory works.
fn build(root: &Path, place: &Place, profile: &str) -> Result<PathBuf> {
    let build = Cmd::cargo([
        "build",
        "--profile",
        profile,
        "-p",
        place.package,
        "--example",
        place.example,
    ])
    .args(["--message-format", "json-render-diagnostics"])
    // Type parameters in the names distinguish one handler's trampoline from another's.
    .args(["--config", "build.rustflags=['-Csymbol-mangling-version=v0']"]);
    let output = build
        .build(root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo cannot be started")?;
    if !output.status.success() {
        bail!("`{build}`: {}", output.status);
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == place.example)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo built no program")
}

fn disassemble(program: &Path) -> Result<String> {
    let output = Command::new("objdump")
        .args(["--disassemble", "--no-show-raw-insn", "--demangle"])
        .args(["--disassembler-options=intel", "--wide", "--section=.text"])
        .arg(program)
        .output()
        .context("objdump cannot be started; Debian has it in the package binutils")?;
    if !output.status.success() {
        bail!("objdump: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One function of the listing.
struct Function<'a> {
    name: &'a str,
    /// Address and text of each instruction.
    instructions: Vec<(u64, &'a str)>,
}

/// Splits objdump's listing into functions.
fn functions(listing: &str) -> Vec<Function<'_>> {
    let mut functions: Vec<Function<'_>> = Vec::new();
    for line in listing.lines() {
        if let Some(name) = function_name(line) {
            functions.push(Function { name, instructions: Vec::new() });
        } else if let (Some(function), Some((address, text))) =
            (functions.last_mut(), line.split_once(":\t"))
            && let Ok(address) = u64::from_str_radix(address.trim(), 16)
        {
            function.instructions.push((address, text.trim()));
        }
    }
    functions
}

/// `0000000000001139 <windlass::kernel::dispatch::dispatch_batch>:`
fn function_name(line: &str) -> Option<&str> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    u64::from_str_radix(address, 16).ok().map(|_| name)
}

impl Function<'_> {
    /// Prints the function without addresses. Places inside it become `.1`, `.2` in their order.
    /// Places outside are printed by name.
    fn print(&self) -> String {
        let body: Vec<(u64, &str)> =
            self.instructions.iter().filter(|(_, text)| !is_padding(text)).copied().collect();
        let inside: BTreeSet<u64> = body.iter().map(|(address, _)| *address).collect();
        let targets: BTreeSet<u64> = body
            .iter()
            .filter_map(|(_, text)| jump_target(text))
            .map(|(_, address, _)| address)
            .filter(|address| inside.contains(address))
            .collect();
        let labels: BTreeMap<u64, usize> = targets.into_iter().zip(1..).collect();
        let mut printed = format!("{}:\n", self.name);
        for (address, text) in &body {
            if let Some(label) = labels.get(address) {
                let _ = writeln!(printed, ".{label}:");
            }
            let _ = writeln!(printed, "    {}", plain(text, &labels));
        }
        printed
    }
}

/// Padding that the assembler adds between functions and before loops, to align them.
fn is_padding(text: &str) -> bool {
    let instruction = text.trim_start_matches("data16 ").trim_start_matches("cs ");
    ["nop", "int3", "xchg   ax,ax"].iter().any(|padding| instruction.starts_with(padding))
}

/// A jump or call: the instruction, its target, and the target's name.
fn jump_target(text: &str) -> Option<(&str, u64, &str)> {
    let (instruction, operand) = text.split_once(char::is_whitespace)?;
    let (address, name) = operand.trim().split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let name = name.trim().strip_prefix('<')?.strip_suffix('>')?;
    Some((instruction, address, name))
}

/// One instruction with names in place of addresses.
fn plain(text: &str, labels: &BTreeMap<u64, usize>) -> String {
    if let Some((instruction, address, name)) = jump_target(text) {
        return match labels.get(&address) {
            Some(label) => format!("{instruction:<6} .{label}"),
            None => format!("{instruction:<6} {}", without_offset(name)),
        };
    }
    // `mov rax,QWORD PTR [rip+0x2f41]        # 4010 <name>`
    let Some((operation, comment)) = text.split_once('#') else {
        return text.to_owned();
    };
    let name = comment
        .split_once('<')
        .and_then(|(_, name)| name.trim_end().strip_suffix('>'))
        .map_or("data", without_offset);
    match (operation.find("[rip"), operation.rfind(']')) {
        (Some(open), Some(close)) => {
            format!("{}[{name}]{}", &operation[..open], operation[close + 1..].trim_end())
        }
        _ => operation.trim_end().to_owned(),
    }
}

/// `name+0x40` is a place in or near `name`. The distance changes with every build.
fn without_offset(name: &str) -> &str {
    name.rsplit_once("+0x").map_or(name, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "
Disassembly of section .text:

0000000000001100 <windlass::kernel::dispatch::dispatch_batch>:
    1100:\tpush   rbx
    1101:\tmov    rax,QWORD PTR [rip+0x2f41]        # 4010 <windlass::stats::EVENTS>
    1107:\tnop
    1108:\ttest   rdi,rdi
    110b:\tje     1117 <windlass::kernel::dispatch::dispatch_batch+0x17>
    110d:\tcall   QWORD PTR [rdi]
    110f:\tcall   2000 <core::panicking::panic>
    1114:\tdec    rdi
    1115:\tjmp    1108 <windlass::kernel::dispatch::dispatch_batch+0x8>
    1117:\tpop    rbx
    1118:\tret
    1119:\tnop    DWORD PTR [rax+0x0]
    111f:\tcs nop WORD PTR [rax+rax*1+0x0]

0000000000001130 <other>:
    1130:\tret
";

    #[test]
    fn a_function_is_printed_without_addresses() {
        let functions = functions(LISTING);
        assert_eq!(functions.len(), 2);
        assert_eq!(
            functions[0].print(),
            "windlass::kernel::dispatch::dispatch_batch:
    push   rbx
    mov    rax,QWORD PTR [windlass::stats::EVENTS]
.1:
    test   rdi,rdi
    je     .2
    call   QWORD PTR [rdi]
    call   core::panicking::panic
    dec    rdi
    jmp    .1
.2:
    pop    rbx
    ret
"
        );
    }

    #[test]
    fn functions_are_wanted_by_both_ends_of_their_name() {
        let name = "windlass::cell::dispatch::<asm_probe::Probe>";
        assert!(is_wanted(name, "windlass::cell::dispatch::<", "asm_probe::"));
        assert!(!is_wanted(name, "windlass::dispatch", ""));
        assert!(!is_wanted(
            "windlass::cell::dispatch::<u8>",
            "windlass::cell::dispatch::<",
            "asm_probe::"
        ));
    }
}
