//! What a case needs of the machine: descriptors, processors, memory.

use std::collections::BTreeMap;

use serde_json::Value;
use windlass_bench_driver::protocol::Case;

use crate::cases;
use crate::pin::allowed_cpus;

/// Descriptors of a program beside those of its case.
const DESCRIPTORS_OWN: u64 = 64;
/// Memory of a source, connection or timer, of all programs and of the kernel, in bytes. It is
/// above what any of them takes, so that no case begins that the machine cannot hold.
const BYTES_EACH: u64 = 64 * 1024;

/// The parameters that count descriptors of one process, and how many each one takes.
const DESCRIPTORS: [(&str, u64); 8] = [
    ("registered", 1),
    ("subscribers", 4),
    ("connections", 1),
    ("receivers", 1),
    ("streams", 2),
    ("pairs", 4),
    ("parallel", 2),
    ("quiet", 1),
];

/// What the machine has.
#[derive(Clone, Copy, Debug)]
struct Machine {
    descriptors_max: u64,
    processors: usize,
    memory_bytes: u64,
}

/// What a case needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Needs {
    descriptors: u64,
    processors: usize,
    memory_bytes: u64,
}

/// Returns why these cases cannot be measured on this machine; `None` if they can.
pub(crate) fn lack(cases: &[Case]) -> Option<String> {
    let machine = Machine {
        descriptors_max: descriptors_max(&read("/proc/self/limits")).unwrap_or(u64::MAX),
        processors: allowed_cpus().len(),
        memory_bytes: available(&read("/proc/meminfo")).unwrap_or(u64::MAX),
    };
    cases.iter().find_map(|case| missing(needs(case), machine))
}

/// Returns the parameter that marks a case with more threads than processors: those of the server,
/// and that of the client. It is measured all the same.
pub(crate) fn too_few_processors(case: &Case) -> Option<(String, Value)> {
    mark(case, allowed_cpus().len())
}

fn mark(case: &Case, allowed: usize) -> Option<(String, Value)> {
    let threads = cases::server_threads(case)? + 1;
    let mark = format!("{allowed} for {threads} threads");
    (threads > allowed).then(|| ("processors".to_owned(), mark.into()))
}

fn needs(case: &Case) -> Needs {
    let (_, params) = cases::describe(case);
    let value = |name: &str| number(&params, name);
    let descriptors = descriptors(&params);
    // In the suite `calls` and in memory nothing is registered.
    let descriptors = if cases::works_in_memory(case.suite()) { 0 } else { descriptors };
    let has_client = cases::servers::SUITES.contains(&case.suite()) && *case != Case::FirstEvent;
    let is_pair = has_client && case.suite() != "cluster";
    // Messages wait in buffers of both sides.
    let bytes = descriptors * BYTES_EACH + 4 * value("connections") * value("bytes");
    Needs { descriptors, processors: if is_pair { 2 } else { 1 }, memory_bytes: bytes }
}

fn number(params: &BTreeMap<String, Value>, name: &str) -> u64 {
    params.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the number of descriptors of one process in a case with these parameters.
pub(crate) fn descriptors(params: &BTreeMap<String, Value>) -> u64 {
    DESCRIPTORS.iter().map(|(name, each)| number(params, name) * each).sum()
}

fn missing(needs: Needs, machine: Machine) -> Option<String> {
    let descriptors = needs.descriptors + DESCRIPTORS_OWN;
    if descriptors > machine.descriptors_max && needs.descriptors > 0 {
        let max = machine.descriptors_max;
        return Some(format!(
            "needs {descriptors} descriptors, and the limit is {max}; raise it with `ulimit -Hn`"
        ));
    }
    if needs.processors > machine.processors {
        let has = machine.processors;
        return Some(format!("needs {} processors, and {has} may be used", needs.processors));
    }
    let mib = |bytes: u64| bytes >> 20;
    (needs.memory_bytes > machine.memory_bytes).then(|| {
        let (needed, has) = (mib(needs.memory_bytes), mib(machine.memory_bytes));
        format!("may need {needed} MiB of memory, and {has} MiB are available")
    })
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the hard limit, to which programs raise their own.
fn descriptors_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_bench_driver::http::HttpCase;
    use windlass_bench_driver::load::LoadCase;
    use windlass_bench_driver::protocol::Trigger;

    const MACHINE: Machine =
        Machine { descriptors_max: 20_000, processors: 2, memory_bytes: 8 << 30 };

    #[test]
    fn what_the_machine_lacks_is_named() {
        let trigger = Trigger::Edge;
        let one = |registered| needs(&Case::OneReady { registered, trigger });
        assert_eq!(missing(one(8_000), MACHINE), None);
        let reason = missing(one(100_000), MACHINE).unwrap();
        assert!(reason.contains("100064 descriptors") && reason.contains("20000"), "{reason}");
        let four = needs(&Case::FourFds { subscribers: 10_000, trigger });
        assert!(missing(four, MACHINE).unwrap().contains("40064"));
        let little = Machine { memory_bytes: 1 << 20, ..MACHINE };
        assert!(missing(one(8_000), little).unwrap().contains("500 MiB"));
        let server = needs(&Case::Upgrade { parallel: 16 });
        let reason = missing(server, Machine { processors: 1, ..MACHINE }).unwrap();
        assert_eq!(reason, "needs 2 processors, and 1 may be used");
    }

    #[test]
    fn a_case_with_more_threads_than_processors_is_marked() {
        let case = |workers| Case::Load(LoadCase::Workers { workers, connections: 100 });
        assert_eq!(mark(&case(1), 2), None);
        let told = Some(("processors".into(), "2 for 5 threads".into()));
        assert_eq!(mark(&case(4), 2), told);
        let http = Case::Http(HttpCase::MultiThread { threads: 4, connections: 32 });
        assert_eq!((mark(&http, 2), mark(&http, 5)), (told, None));
        assert_eq!(mark(&Case::Upgrade { parallel: 1 }, 1), None);
    }

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let limits = "Limit   Soft Limit   Hard Limit   Units\nMax open files   1024   20000   f\n";
        assert_eq!(descriptors_max(limits), Some(20_000));
        assert_eq!(descriptors_max("Max open files  1024  unlimited  f"), None);
        assert_eq!(available("MemTotal: 2 kB\nMemAvailable:   8 kB\n"), Some(8192));
    }

    #[test]
    fn nothing_is_registered_in_memory() {
        assert_eq!(needs(&Case::IdleEngine { engines: 100 }).descriptors, 0);
    }
}
