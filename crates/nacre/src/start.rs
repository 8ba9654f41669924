//! Start parameters: the options for CPU partitions, and module parameters under Lustre's names.
//!
//! Each layer has its own table (`lnet::START`, `rpc::START`, `lst::START`, and [`CPT`] here, since
//! the `cpt` crate has no parameters). `nacre up` keeps the settings in its directory; other
//! processes get them from the command line or the options file at each start.

mod options;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use cpt::CptConfig;
use lnet::LnetConfig;
use params::start::{number, switch};
use params::{Param, ParamGuard, Registry, StartParam};
use rpc::RpcConfig;

use crate::cli::StartArgs;

/// Minimum similarity (Jaro-Winkler, 0 to 1) of an unknown name to a known one for which the error
/// suggests the known name.
const SUGGESTION_SIMILARITY: f64 = 0.7;

/// Maximum number of CPU partitions.
const PARTITIONS_MAX: usize = 8192;

/// The start parameters of CPU partitions.
const CPT: &[StartParam<CptConfig>] = &[
    StartParam {
        module: "libcfs",
        name: "cpu_npartitions",
        about: "number of CPU partitions; 0: from cpu_pattern; auto: by the rule of Lustre 2.3",
        show: |c| {
            if c.published_rule {
                "auto".to_owned()
            } else {
                c.cpu_npartitions.to_string()
            }
        },
        set: |c, text| {
            c.published_rule = text.trim() == "auto";
            if !c.published_rule {
                c.cpu_npartitions = number(text, 0..=PARTITIONS_MAX).map_err(|e| format!("{e}, or auto"))?;
            }
            Ok(())
        },
    },
    StartParam {
        module: "libcfs",
        name: "cpu_pattern",
        about: "CPUs or NUMA nodes of each CPU partition; N: one for each node; empty: by the number of CPUs",
        show: |c| c.cpu_pattern.clone().unwrap_or_else(|| "N".to_owned()),
        set: |c, text| {
            c.cpu_pattern = Some(text.trim().to_owned());
            Ok(())
        },
    },
    StartParam {
        module: "libcfs",
        name: "force_partitions",
        about: "1: CPU partitions may share CPUs if there are too few; for tests, not for speed",
        show: |c| u8::from(c.force_partitions).to_string(),
        set: |c, text| switch(text).map(|on| c.force_partitions = on),
    },
];

/// The configurations of all layers, and the settings behind them.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartConfig {
    pub(crate) cpt: CptConfig,
    pub(crate) lnet: LnetConfig,
    pub(crate) rpc: RpcConfig,
    pub(crate) lst: lst::Settings,
    /// Values by name, as given.
    settings: BTreeMap<String, String>,
}

impl StartConfig {
    /// Combines settings; the command line overrides the options file, which overrides the `saved`
    /// settings. An empty value removes a setting, except for `cpu_pattern`.
    pub(crate) fn new(args: &StartArgs, saved: &[String]) -> Result<StartConfig> {
        let mut assignments: Vec<String> = saved.to_vec();
        if let Some(path) = &args.options_file {
            assignments.extend(options::read(path)?);
        }
        assignments.extend(
            args.cpu_npartitions
                .as_ref()
                .map(|n| format!("cpu_npartitions={n}")),
        );
        assignments.extend(args.cpu_pattern.as_ref().map(|p| format!("cpu_pattern={p}")));
        assignments.extend(args.force_partitions.then(|| "force_partitions=1".to_owned()));
        assignments.extend_from_slice(&args.param);
        let mut settings = BTreeMap::new();
        for setting in assignments {
            let (name, value) = setting
                .split_once('=')
                .with_context(|| format!("start parameter '{setting}' is not of the form NAME=VALUE"))?;
            // An empty cpu_pattern is a value: partitions by the number of CPUs.
            if value.is_empty() && name != "cpu_pattern" {
                settings.remove(name);
            } else {
                settings.insert(name.to_owned(), value.to_owned());
            }
            check_name(name)?;
        }
        let mut start = StartConfig::default();
        for (name, value) in &settings {
            start
                .set(name, value)
                .with_context(|| format!("cannot set start parameter {name}='{value}'"))?;
        }
        Ok(StartConfig { settings, ..start })
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let result = StartParam::set_in(CPT, &mut self.cpt, name, value)
            .or_else(|| StartParam::set_in(lnet::START, &mut self.lnet, name, value))
            .or_else(|| StartParam::set_in(rpc::START, &mut self.rpc, name, value))
            .or_else(|| StartParam::set_in(lst::START, &mut self.lst, name, value));
        match result {
            Some(result) => result.map_err(anyhow::Error::msg),
            None => check_name(name),
        }
    }

    /// All settings, as `NAME=VALUE`.
    pub(crate) fn settings(&self) -> Vec<String> {
        self.settings
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    /// Registers every start parameter as the read-only parameter `module.MODULE.NAME`.
    pub(crate) fn register_params(&self, registry: &Registry) -> Vec<ParamGuard> {
        let mut guards = register_table(registry, CPT, &self.cpt);
        guards.extend(register_table(registry, lnet::START, &self.lnet));
        guards.extend(register_table(registry, rpc::START, &self.rpc));
        guards.extend(register_table(registry, lst::START, &self.lst));
        guards
    }
}

fn register_table<C>(registry: &Registry, table: &[StartParam<C>], config: &C) -> Vec<ParamGuard> {
    let register = |row: &StartParam<C>| {
        let value = (row.show)(config);
        let param = Param::read_only(move || value.clone()).about(row.about);
        registry.register(format!("module.{}.{}", row.module, row.name), param)
    };
    table.iter().map(register).collect()
}

/// Fails for an unknown name and suggests the most similar known one.
fn check_name(name: &str) -> Result<()> {
    let cpt = CPT.iter().map(|p| p.name);
    let known = cpt
        .chain(lnet::START.iter().map(|p| p.name))
        .chain(rpc::START.iter().map(|p| p.name))
        .chain(lst::START.iter().map(|p| p.name));
    let most_similar = known
        .map(|k| (strsim::jaro_winkler(name, k), k))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match most_similar {
        Some((_, known)) if known == name => Ok(()),
        Some((similarity, known)) if similarity >= SUGGESTION_SIMILARITY => {
            bail!("there is no start parameter '{name}': did you mean '{known}'?")
        }
        _ => bail!("there is no start parameter '{name}': `nacre lctl help_param 'module.*'` lists them"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::StartConfig;
    use crate::cli::StartArgs;

    fn args(params: &[&str]) -> StartArgs {
        StartArgs {
            param: params.iter().map(|p| (*p).to_owned()).collect(),
            ..StartArgs::default()
        }
    }

    fn error_of(params: &[&str]) -> String {
        format!("{:#}", StartConfig::new(&args(params), &[]).unwrap_err())
    }

    #[test]
    fn settings_reach_their_layers() {
        let args = StartArgs {
            cpu_npartitions: Some("4".to_owned()),
            force_partitions: true,
            ..args(&["peer_credits=16", "mds_num_cpts=[1-3]", "cpu_pattern="])
        };
        let start = StartConfig::new(&args, &[]).unwrap();
        assert_eq!((start.cpt.cpu_npartitions, start.cpt.force_partitions), (4, true));
        assert_eq!(start.cpt.cpu_pattern.as_deref(), Some(""));
        assert_eq!(
            (start.lnet.peer_credits, start.rpc.services.mds.cpts),
            (16, vec![1, 2, 3])
        );
    }

    #[test]
    fn saved_settings_hold_until_changed() {
        let saved = StartConfig::new(&args(&["peer_credits=16", "credits=64"]), &[])
            .unwrap()
            .settings();
        let again = StartConfig::new(&args(&["credits=", "peer_credits=4"]), &saved).unwrap();
        assert_eq!(again.settings(), ["peer_credits=4"]);
        assert_eq!(again.lnet.credits, 256);
    }

    #[test]
    fn invalid_start_parameter_is_explained() {
        assert!(error_of(&["mds_num_cpt=[0]"]).contains("did you mean 'mds_num_cpts'?"));
        assert!(error_of(&["xyzzy=1"]).contains("lists them"));
        assert!(error_of(&["credits"]).contains("NAME=VALUE"));
        let why = error_of(&["peer_credits=none"]);
        assert!(
            why.contains("peer_credits='none'") && why.contains("whole number from 1"),
            "{why}"
        );
    }
}
