//! Values stored in a log, one section each: parameters of all nodes (`lctl set_param -P`) in the
//! log `params`, nodemaps and `mgs.MGS.server_nids` in the log `nodemaps`, and the keys of object
//! capabilities in the log `capa_keys`.

use wire::LCFG_SET_PARAM;
use wire::config::Config as Record;

use crate::MgsError;
use crate::logs::{Logs, Section};

/// The log of parameters of all nodes.
pub(crate) const PARAMS: &str = "params";
/// The target in the markers and records of these sections.
const TARGET: &str = "general";
/// Maximum length of a name in bytes: the name is the section's comment, which has 64 bytes with
/// its NUL.
const NAME_MAX: usize = 63;

/// The value of this name in a log.
pub(crate) fn get(logs: &Logs, log: &str, name: &str) -> Option<String> {
    let found = list(logs, log).into_iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value)
}

/// Names and values in a log.
pub(crate) fn list(logs: &Logs, log: &str) -> Vec<(String, String)> {
    let params = mgc::FsConfig::from_records(log, &logs.records(log)).params;
    params.into_iter().map(|p| (p.name, p.value)).collect()
}

/// Sets a value in a log, or removes it if `value` is `None`. Setting a value marks the section of
/// the previous value as skipped. `now` is in seconds since 1970.
pub(crate) fn set(
    logs: &mut Logs,
    log: &str,
    name: &str,
    value: Option<&str>,
    now: i64,
) -> Result<(), MgsError> {
    let bad = |why: &str| {
        Err(MgsError::Param {
            name: name.to_owned(),
            why: why.to_owned(),
        })
    };
    if name.is_empty() || name.len() > NAME_MAX || name.contains(['=', '\0']) {
        return bad("a name has 1 to 63 bytes, without '=' and NUL");
    }
    let was_set = logs.skip(log, TARGET, name, now);
    let Some(value) = value else {
        return if was_set { Ok(()) } else { bad("it is not set") };
    };
    if value.len() > wire::MGS_PARAM_MAXLEN as usize || value.contains('\0') {
        return bad("its value is longer than 1024 bytes, or has a NUL");
    }
    let section = Section {
        step: logs.last_step(log).max(1) + 1,
        target: TARGET,
        comment: name,
        created: now,
    };
    let record = Record::new(LCFG_SET_PARAM, &[TARGET, &format!("{name}={value}"), "lctl"]);
    logs.append(log, &section, &[record])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn logs() -> Logs {
        Logs::in_memory()
    }

    #[test]
    fn a_captured_parameter_log_is_rebuilt_byte_for_byte() {
        let mut logs = logs();
        set(&mut logs, PARAMS, "osc.*.max_dirty_mb", Some("64"), 0x6b00_2800).unwrap();
        let real = crate::fsdb::tests::normalise(include_bytes!("../../mgc/testdata/params.llog"));
        assert!(logs.get(PARAMS).unwrap().llog.build() == real);
    }

    #[test]
    fn the_last_value_replaces_earlier_ones_until_it_is_removed() {
        let mut logs = logs();
        let values =
            |logs: &Logs| -> Vec<String> { list(logs, PARAMS).into_iter().map(|(_, value)| value).collect() };
        set(&mut logs, PARAMS, "osc.*.max_dirty_mb", Some("64"), 1).unwrap();
        set(&mut logs, PARAMS, "osc.*.max_dirty_mb", Some("32"), 2).unwrap();
        assert_eq!(values(&logs), ["32"]);
        set(&mut logs, PARAMS, "osc.*.max_dirty_mb", None, 3).unwrap();
        assert!(values(&logs).is_empty());
        assert!(set(&mut logs, PARAMS, "osc.*.max_dirty_mb", None, 4).is_err());
        assert!(set(&mut logs, PARAMS, "a=b", Some("1"), 4).is_err());
    }
}
