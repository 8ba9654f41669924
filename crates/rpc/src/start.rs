//! The start parameters of the RPC layer and its services: maps Lustre's module parameters to
//! fields of [`RpcConfig`].

use crate::RpcConfig;
use params::StartParam;
use params::start::{number, seconds, switch};

/// Upper bound of the numbers of threads.
const THREADS_MAX: usize = 1 << 16;

/// A row for a number of threads.
macro_rules! threads {
    ($module:literal, $name:literal, $about:literal, $($field:ident).+) => {
        StartParam {
            module: $module,
            name: $name,
            about: $about,
            show: |c| c.services.$($field).+.to_string(),
            set: |c, text| number(text, 0..=THREADS_MAX).map(|n| c.services.$($field).+ = n),
        }
    };
}

/// A row for a list of CPU partitions.
macro_rules! cpts {
    ($module:literal, $name:literal, $about:literal, $($field:ident).+) => {
        StartParam {
            module: $module,
            name: $name,
            about: $about,
            show: |c| show_cpts(&c.services.$($field).+),
            set: |c, text| parse_cpts(text).map(|cpts| c.services.$($field).+ = cpts),
        }
    };
}

/// A row for binding threads to their partition.
macro_rules! bind {
    ($module:literal, $name:literal, $about:literal, $($field:ident).+) => {
        StartParam {
            module: $module,
            name: $name,
            about: $about,
            show: |c| u8::from(c.services.$($field).+.bind).to_string(),
            set: |c, text| switch(text).map(|on| c.services.$($field).+.bind = on),
        }
    };
}

/// A row for a time of 1 s to 10 h.
macro_rules! at {
    ($name:ident, $about:literal) => {
        StartParam {
            module: "ptlrpc",
            name: stringify!($name),
            about: $about,
            show: |c| c.$name.as_secs().to_string(),
            set: |c, text| seconds(text, 1..=36_000).map(|t| c.$name = t),
        }
    };
}

/// The rows of all start parameters.
pub const START: &[StartParam<RpcConfig>] = &[
    at!(
        at_min,
        "minimum of the service time that clients and services estimate, seconds"
    ),
    at!(
        at_max,
        "maximum of the service time that clients and services estimate, seconds"
    ),
    at!(
        at_history,
        "time for which a measured service time counts, seconds"
    ),
    at!(
        at_early_margin,
        "time before a deadline at which an early reply is sent, seconds"
    ),
    at!(at_extra, "time from an early reply to the new deadline, seconds"),
    at!(
        unreachable_timeout,
        "time after which an unreachable client that blocks others is evicted, seconds"
    ),
    StartParam {
        module: "ptlrpc",
        name: "tbf_rate",
        about: "requests per second of the default TBF rule, and of new rules without a rate",
        show: |c| c.tbf_rate.to_string(),
        set: |c, text| number(text, 1..=999_999).map(|n| c.tbf_rate = n),
    },
    StartParam {
        module: "ptlrpc",
        name: "tbf_depth",
        about: "maximum number of tokens in the bucket of a TBF class",
        show: |c| c.tbf_depth.to_string(),
        set: |c, text| number(text, 1..=10_000).map(|n| c.tbf_depth = n),
    },
    threads!(
        "mdt",
        "mds_num_threads",
        "MDS threads of all partitions; 0: computed",
        mds.threads
    ),
    cpts!(
        "mdt",
        "mds_num_cpts",
        "CPU partitions that MDS threads run on, such as [0,2-3]; all when empty",
        mds.cpts
    ),
    bind!(
        "mdt",
        "mds_cpu_bind",
        "whether MDS threads are bound to their partition",
        mds
    ),
    threads!(
        "mdt",
        "mds_rdpg_num_threads",
        "MDS readpage threads of all partitions; 0: computed",
        mds_rdpg.threads
    ),
    cpts!(
        "mdt",
        "mds_rdpg_num_cpts",
        "CPU partitions that MDS readpage threads run on",
        mds_rdpg.cpts
    ),
    bind!(
        "mdt",
        "mds_rdpg_cpu_bind",
        "whether MDS readpage threads are bound to their partition",
        mds_rdpg
    ),
    threads!(
        "mdt",
        "mds_max_io_threads",
        "maximum of MDS I/O threads of all partitions; 0: 512",
        mds_io.max
    ),
    cpts!(
        "mdt",
        "mds_io_num_cpts",
        "CPU partitions that MDS I/O threads run on",
        mds_io.cpts
    ),
    bind!(
        "mdt",
        "mds_io_cpu_bind",
        "whether MDS I/O threads are bound to their partition",
        mds_io
    ),
    threads!(
        "ofd",
        "oss_num_threads",
        "OSS threads of all partitions; 0: computed",
        oss.threads
    ),
    threads!(
        "ofd",
        "oss_max_threads",
        "maximum of OSS threads of all partitions; 0: 512",
        oss.max
    ),
    cpts!(
        "ofd",
        "oss_cpts",
        "CPU partitions that OSS threads run on",
        oss.cpts
    ),
    cpts!(
        "ofd",
        "oss_io_cpts",
        "CPU partitions that OSS I/O threads run on",
        oss_io_cpts
    ),
    bind!(
        "ofd",
        "oss_cpu_bind",
        "whether OSS threads are bound to their partition",
        oss
    ),
    threads!(
        "ofd",
        "oss_num_create_threads",
        "OSS create threads of all partitions; 0: computed",
        oss_create.threads
    ),
    bind!(
        "ofd",
        "oss_create_cpu_bind",
        "whether OSS create threads are bound to their partition",
        oss_create
    ),
    threads!(
        "ptlrpc",
        "ldlm_num_threads",
        "threads for lock callbacks and cancels, all partitions together; 0: computed from the CPUs",
        ldlm.threads
    ),
    cpts!(
        "ptlrpc",
        "ldlm_cpts",
        "CPU partitions that lock threads run on",
        ldlm.cpts
    ),
    bind!(
        "ptlrpc",
        "ldlm_cpu_bind",
        "whether lock threads are bound to their partition",
        ldlm
    ),
];

fn parse_cpts(text: &str) -> Result<Vec<usize>, String> {
    let text = text.trim();
    let inner = text.strip_prefix('[').map_or(Some(text), |t| t.strip_suffix(']'));
    let inner = inner.ok_or("expected a list of CPU partitions such as [0,2-3]: '[' without ']'")?;
    cpt::parse_list(inner).map_err(|e| format!("expected a list of CPU partitions such as [0,2-3]: {e}"))
}

fn show_cpts(cpts: &[usize]) -> String {
    let cpts: Vec<String> = cpts.iter().map(usize::to_string).collect();
    if cpts.is_empty() {
        String::new()
    } else {
        format!("[{}]", cpts.join(","))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::START;
    use crate::RpcConfig;
    use params::StartParam;

    fn set(config: &mut RpcConfig, name: &str, value: &str) -> Result<(), String> {
        StartParam::set_in(START, config, name, value).unwrap()
    }

    #[test]
    fn every_row_sets_its_own_field_and_shows_it() {
        for row in START {
            let mut config = RpcConfig::default();
            let value = match row.name {
                name if name.ends_with("cpts") => "[1,3]",
                name if name.ends_with("bind") => "0",
                _ => "77",
            };
            assert_eq!(set(&mut config, row.name, value), Ok(()), "{}", row.name);
            assert_eq!((row.show)(&config), value, "{}", row.name);
            let others = START.iter().filter(|r| r.name != row.name);
            let default = RpcConfig::default();
            others.for_each(|r| assert_eq!((r.show)(&config), (r.show)(&default), "{} {}", row.name, r.name));
            assert!(set(&mut config, row.name, "many").is_err());
        }
    }

    #[test]
    fn brackets_of_partition_lists_are_optional() {
        let mut config = RpcConfig::default();
        set(&mut config, "mds_num_cpts", "1-3").unwrap();
        assert_eq!(config.services.mds.cpts, [1, 2, 3]);
        assert!(
            set(&mut config, "mds_num_cpts", "[1")
                .unwrap_err()
                .contains("without ']'")
        );
        set(&mut config, "mds_num_cpts", "").unwrap();
        assert!(config.services.mds.cpts.is_empty());
    }
}
