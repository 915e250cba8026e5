//! The size of the available memory. The default of
//! [`Options::memory_max`](crate::Options::memory_max) is a quarter of it.

use std::{fs, path::Path};

/// Used if neither the machine nor a cgroup reports a size.
const UNKNOWN: u64 = 1 << 30;

/// Returns a quarter of the memory that this process may use: of its cgroup's limit, or of the
/// machine's memory if that is less.
pub(crate) fn quarter_of_available() -> usize {
    let bytes = available(Path::new("/")) / 4;
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Returns the available bytes, according to the files under `root`.
fn available(root: &Path) -> u64 {
    let machine =
        fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| mem_total(&text));
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = cgroups.lines().filter_map(|line| cgroup_limit(root, line));
    machine.into_iter().chain(limits).min().unwrap_or(UNKNOWN)
}

/// Reads `MemTotal` of proc_meminfo(5).
fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the lowest limit of the cgroups named by a line of proc_pid_cgroup(5). The limits of all
/// parent groups apply too.
fn cgroup_limit(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let is_first_version = controllers.split(',').any(|controller| controller == "memory");
    let (folder, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if is_first_version => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    let top = root.join(folder);
    let group = top.join(path.trim_start_matches('/'));
    // A container may see its own group as the root, and read a path that it cannot access.
    let groups = group.ancestors().take_while(|group| group.starts_with(&top));
    // `max` is not a number and means no limit.
    groups.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Temporary files of a test.
    struct TestRoot(PathBuf);

    impl TestRoot {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir()
                .join(format!("windlass-machine-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for TestRoot {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:        8000 kB\nMemFree:  1 kB\n");

    #[test]
    fn memory_of_the_machine_is_that_of_meminfo() {
        let root = TestRoot::new("meminfo", &[MEMINFO]);
        assert_eq!(available(&root.0), 8000 * 1024);
        assert_eq!(available(&root.0.join("nowhere")), UNKNOWN);
    }

    #[test]
    fn the_lowest_limit_of_a_cgroup_and_its_parents_applies() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/outer/inner\n"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
            ("sys/fs/cgroup/outer/memory.max", "4000000\n"),
        ];
        assert_eq!(available(&TestRoot::new("second", &files).0), 4_000_000);
    }

    #[test]
    fn cgroup_version_1_has_other_files() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/group\n0::/\n"),
            ("sys/fs/cgroup/memory/group/memory.limit_in_bytes", "3000000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(available(&TestRoot::new("first", &files).0), 3_000_000);
    }

    #[test]
    fn a_container_that_cannot_see_its_group_uses_the_top_limit() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/system.slice/docker-1.scope\n"),
            ("sys/fs/cgroup/memory.max", "2000000\n"),
        ];
        assert_eq!(available(&TestRoot::new("container", &files).0), 2_000_000);
    }

    #[test]
    fn this_machine_reports_its_memory() {
        assert!(quarter_of_available() > 1 << 20);
    }
}
