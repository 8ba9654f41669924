//! Registration: the targets of a file system, and the changes of its logs (docs/protocol.md,
//! "Configuration (MGS)").
//!
//! The logs are the only record of used indices and of the targets' NIDs. A target that registers
//! again changes the logs only if it reports `LDD_F_UPDATE` or `LDD_F_WRITECONF` and its NIDs
//! differ from the NIDs in the logs. The MGS then marks the target's old sections as skipped and
//! appends new ones.
//!
//! An index belongs to one store. A Nacre target sends the UUID of its store, and the MGS stores
//! the UUID with the logs. Another store gets the index only with `LDD_F_WRITECONF` (after `mkfs
//! --replace`). A Lustre target sends no UUID, but reports whether it is new (`LDD_F_VIRGIN`). A
//! new Lustre target does not get an index in use either.

use std::collections::BTreeSet;

use mgc::{FsConfig, TargetConf};
use wire::config::Config as Record;
use wire::{
    Errno, LDD_F_ERROR, LDD_F_NEED_INDEX, LDD_F_REWRITE_LDD, LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST,
    LDD_F_UPDATE, LDD_F_VIRGIN, LDD_F_WRITECONF, LUSTRE_MAXFSNAME, MTI_NIDS_MAX, MgsTargetInfo, Nid, Text,
};

use crate::MgsError;
use crate::logs::{Logs, Section};
pub(crate) use crate::sections::Target;
use crate::sections::{self, Kind};

/// Highest index that fits into a target's name (`OSTffff` means "any").
const INDEX_MAX: u32 = 0xfffe;

/// The result of a registration.
#[derive(Debug)]
pub(crate) struct RegisterResult {
    /// The reply.
    pub(crate) info: MgsTargetInfo,
    /// Configuration logs have changed: the caller must notify their readers.
    pub(crate) changed: bool,
}

/// Registers a target. Changes the logs in memory; the caller saves them. `store` is the UUID of
/// the target's store, if the target sent one. `now` is in seconds since 1970.
pub(crate) fn register(
    logs: &mut Logs,
    mut info: MgsTargetInfo,
    store: Option<&str>,
    now: i64,
) -> Result<RegisterResult, MgsError> {
    let mut target = parse(&info)?;
    let refuse = |target: &Target, errno, why: String| {
        Err(MgsError::Refused {
            svname: target.name(),
            why,
            errno,
        })
    };
    let needs_index = info.mti_flags & LDD_F_NEED_INDEX != 0;
    if needs_index {
        target.index = free_index(logs, &target);
    }
    let is_mdt0000 = target.kind == Kind::Mdt && target.index == 0;
    let client_log = format!("{}-client", target.fsname);
    if !is_mdt0000 && logs.get(&client_log).is_none() {
        let why = format!("{}-MDT0000 has not registered yet: start it first", target.fsname);
        return refuse(&target, Errno::EAGAIN, why);
    }
    let name = target.name();
    let is_known = logs.get(&name).is_some();
    let replaces = info.mti_flags & LDD_F_WRITECONF != 0;
    if is_known && !replaces {
        let owner = logs.store_of(&name);
        let is_other_store = match owner {
            Some(owner) => store != Some(owner),
            None => store.is_none() && info.mti_flags & LDD_F_VIRGIN != 0,
        };
        if is_other_store {
            let why = target.index_in_use_reason(owner, &nids_in_log(logs, &target));
            return refuse(&target, Errno::EADDRINUSE, why);
        }
    }
    let may_have_moved = info.mti_flags & (LDD_F_UPDATE | LDD_F_WRITECONF) != 0;
    let changed = !is_known || (may_have_moved && !is_listed(logs, &target));
    if changed {
        LogWriter { logs, now, step: 0 }.write(&target, is_known)?;
    }
    logs.set_store(&name, store);
    info.mti_stripe_index = target.index;
    info.mti_svname = Text::truncated(&target.name());
    info.mti_uuid = Text::truncated(&format!("{}_UUID", target.name()));
    info.mti_flags &= !(LDD_F_NEED_INDEX | LDD_F_VIRGIN | LDD_F_UPDATE | LDD_F_WRITECONF | LDD_F_ERROR);
    info.mti_flags |= LDD_F_REWRITE_LDD;
    Ok(RegisterResult { info, changed })
}

/// Checks and parses a registration.
pub(crate) fn parse(info: &MgsTargetInfo) -> Result<Target, MgsError> {
    let bad = |why: &str| {
        let (svname, why) = (info.mti_svname.to_string(), why.to_owned());
        Err(MgsError::Refused {
            svname,
            why,
            errno: Errno::EINVAL,
        })
    };
    let fsname = info.mti_fsname.as_str();
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
    if fsname.is_empty() || fsname.len() > LUSTRE_MAXFSNAME as usize || !fsname.bytes().all(is_allowed) {
        return bad("a file system name has 1 to 8 letters, digits, '_' or '-'");
    }
    let kind = match info.mti_flags & (LDD_F_SV_TYPE_MDT | LDD_F_SV_TYPE_OST) {
        LDD_F_SV_TYPE_MDT => Kind::Mdt,
        LDD_F_SV_TYPE_OST => Kind::Ost,
        _ => return bad("it is neither an MDT nor an OST"),
    };
    if info.mti_flags & LDD_F_NEED_INDEX == 0 && info.mti_stripe_index > INDEX_MAX {
        return bad("its index is above 65534");
    }
    let nids = info
        .mti_nids
        .get(..info.mti_nid_count as usize)
        .unwrap_or_default();
    if nids.is_empty() || info.mti_nid_count > MTI_NIDS_MAX {
        return bad("it has no NID, or more than 32");
    }
    let mut nodes = vec![nids.to_vec()];
    nodes.extend(failover_nodes(info.mti_params.as_str()).filter(|node| node != nids));
    Ok(Target {
        fsname: fsname.to_owned(),
        kind,
        index: info.mti_stripe_index,
        nodes,
    })
}

/// The nodes of `failover.node=NID,NID` parameters: commas separate the NIDs of a node, colons
/// separate nodes.
fn failover_nodes(params: &str) -> impl Iterator<Item = Vec<Nid>> + '_ {
    let values = params
        .split_whitespace()
        .filter_map(|p| p.strip_prefix("failover.node="));
    let nodes = values.flat_map(|v| v.split(':'));
    nodes
        .map(|n| n.split(',').filter_map(|t| t.parse().ok()).collect())
        .filter(|n: &Vec<Nid>| !n.is_empty())
}

fn config(logs: &Logs, log: &str) -> FsConfig {
    FsConfig::from_records(log, &logs.records(log))
}

fn targets_of_kind(config: FsConfig, kind: Kind) -> Vec<TargetConf> {
    if kind == Kind::Mdt {
        config.mdts
    } else {
        config.osts
    }
}

/// The NIDs of a target in the clients' log; none if the target is not in the log.
fn nids_in_log(logs: &Logs, target: &Target) -> Vec<Nid> {
    let targets = targets_of_kind(config(logs, &format!("{}-client", target.fsname)), target.kind);
    targets
        .into_iter()
        .find(|t| t.index == target.index)
        .map(|t| t.nids)
        .unwrap_or_default()
}

/// Whether the clients' log lists the nodes of a target and no other. Their order does not count: a
/// target that moves between its service nodes needs no change of the logs.
fn is_listed(logs: &Logs, target: &Target) -> bool {
    BTreeSet::from_iter(nids_in_log(logs, target)) == target.nodes.iter().flatten().copied().collect()
}

/// The lowest index that no target of this kind has or had; [`INDEX_MAX`] if all are used.
fn free_index(logs: &Logs, target: &Target) -> u32 {
    let free = |&index: &u32| {
        logs.get(
            &Target {
                index,
                ..target.clone()
            }
            .name(),
        )
        .is_none()
    };
    (0..=INDEX_MAX).find(free).unwrap_or(INDEX_MAX)
}

/// Writes a registration into the logs of a file system. Each section gets the next step.
struct LogWriter<'a> {
    logs: &'a mut Logs,
    /// Seconds since 1970.
    now: i64,
    /// The step of the last section.
    step: u32,
}

impl LogWriter<'_> {
    /// Writes all sections that describe the target. `is_known`: the target's own log exists.
    fn write(mut self, target: &Target, is_known: bool) -> Result<(), MgsError> {
        let fs = &target.fsname;
        let (name, client) = (target.name(), format!("{fs}-client"));
        let prefix = format!("{fs}-");
        let steps: Vec<u32> = self.logs.names(&prefix).map(|n| self.logs.last_step(n)).collect();
        // In Lustre, the first section of a file system has step 2.
        self.step = steps.into_iter().max().unwrap_or(1).max(1);
        let others = self.other_targets(target);
        match target.kind {
            Kind::Mdt => {
                if !is_known {
                    self.write_mdt_log(target, &others)?;
                }
                if self.logs.get(&client).is_none() {
                    let (lov, lmv) = (format!("{fs}-clilov"), format!("{fs}-clilmv"));
                    self.write_section(&client, &lov, "lov setup", &sections::lov(&lov))?;
                    self.write_section(&client, &lmv, "lmv setup", &sections::lmv(&lmv))?;
                    self.write_section(&client, &client, "mount opts", &sections::mount_options(fs))?;
                }
                self.write_section(&client, &name, "add mdc", &sections::mdc(target))?;
                for mdt in others.iter().filter(|t| t.kind == Kind::Mdt) {
                    let (lov, suffix) = mdt_lov_and_suffix(mdt);
                    self.write_section(
                        &mdt.name(),
                        &name,
                        "add osp",
                        &sections::osp(target, &lov, &suffix, false),
                    )?;
                }
            }
            Kind::Ost => {
                if !is_known {
                    self.write_section(&name, &name, "add ost", &sections::ost_setup(target))?;
                }
                for mdt in others.iter().filter(|t| t.kind == Kind::Mdt) {
                    let (lov, suffix) = mdt_lov_and_suffix(mdt);
                    self.write_section(
                        &mdt.name(),
                        &name,
                        "add osc",
                        &sections::osc(target, &lov, &suffix),
                    )?;
                }
                let lov = format!("{fs}-clilov");
                self.write_section(&client, &name, "add osc", &sections::osc(target, &lov, ""))?;
            }
        }
        Ok(())
    }

    /// Writes a new MDT's own log: its LOV, itself, then every other target.
    fn write_mdt_log(&mut self, target: &Target, others: &[Target]) -> Result<(), MgsError> {
        let name = target.name();
        let (lov, suffix) = mdt_lov_and_suffix(target);
        self.write_section(&name, &lov, "lov setup", &sections::lov(&lov))?;
        self.write_section(&name, &name, "add mdt", &sections::mdt_setup(target, &lov))?;
        for other in others {
            let (comment, records) = match other.kind {
                Kind::Mdt => ("add osp", sections::osp(other, &lov, &suffix, true)),
                Kind::Ost => ("add osc", sections::osc(other, &lov, &suffix)),
            };
            self.write_section(&name, &other.name(), comment, &records)?;
        }
        Ok(())
    }

    /// All other targets of the file system, MDTs first.
    fn other_targets(&self, target: &Target) -> Vec<Target> {
        let config = config(self.logs, &format!("{}-client", target.fsname));
        let targets = |kind, list: Vec<TargetConf>| {
            let fsname = target.fsname.clone();
            // The configuration does not say which NIDs belong to one node, so each NID becomes a
            // node. An import needs only the order of the NIDs.
            let nodes = |t: &TargetConf| t.nids.iter().map(|&n| vec![n]).collect();
            list.into_iter().map(move |t| Target {
                fsname: fsname.clone(),
                kind,
                index: t.index,
                nodes: nodes(&t),
            })
        };
        let all = targets(Kind::Mdt, config.mdts.clone()).chain(targets(Kind::Ost, config.osts));
        all.filter(|t| (t.kind, t.index) != (target.kind, target.index))
            .collect()
    }

    /// Appends a section to a log, and marks earlier sections of the same target and comment as
    /// skipped.
    fn write_section(
        &mut self,
        log: &str,
        target: &str,
        comment: &str,
        records: &[Record],
    ) -> Result<(), MgsError> {
        self.step += 1;
        self.logs.skip(log, target, comment, self.now);
        self.logs.append(
            log,
            &Section {
                step: self.step,
                target,
                comment,
                created: self.now,
            },
            records,
        )
    }
}

/// The name of the LOV of an MDT's imports, and the suffix of the imports' names.
fn mdt_lov_and_suffix(mdt: &Target) -> (String, String) {
    let name = mdt.name();
    let suffix = name
        .rsplit_once('-')
        .map_or_else(String::new, |(_, t)| format!("-{t}"));
    (format!("{name}-mdtlov"), suffix)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use wire::OstIndex;

    fn logs() -> Logs {
        Logs::in_memory()
    }

    fn info(kind: u32, index: u32, nid: &str) -> MgsTargetInfo {
        let mut info = MgsTargetInfo {
            mti_flags: kind | LDD_F_VIRGIN | LDD_F_UPDATE,
            mti_stripe_index: index,
            mti_nid_count: 1,
            mti_fsname: Text::truncated("testfs"),
            ..MgsTargetInfo::default()
        };
        info.mti_nids[0] = nid.parse().unwrap();
        info
    }

    /// Converts a captured log to the form that this MGS writes: clears the bytes after the NUL of
    /// a text of fixed size, which Lustre leaves arbitrary, and replaces the version in the
    /// markers.
    pub(crate) fn normalise(file: &[u8]) -> bytes::Bytes {
        let log = wire::llog_file::Log::parse(file).unwrap();
        let mut copy = log.clone();
        for entry in log.live().map(Result::unwrap) {
            if let Some(mut marker) = Record::parse(entry.data).unwrap().as_marker() {
                marker.cm_tgtname = Text::truncated(marker.cm_tgtname.as_str());
                marker.cm_comment = Text::truncated(marker.cm_comment.as_str());
                // The captured server was built from a slightly later commit of Lustre.
                marker.cm_vers = wire::LUSTRE_VERSION_CODE;
                assert!(copy.rewrite(entry.index, &Record::marker(&marker).build()));
            }
        }
        copy.build()
    }

    #[test]
    fn captured_logs_are_rebuilt_byte_for_byte() {
        const N1: &str = "10.88.0.11@tcp";
        const N2: &str = "10.88.0.12@tcp";
        let mut logs = logs();
        // The times in the markers of the captured logs.
        let steps = [
            (LDD_F_SV_TYPE_MDT, 0, N1, 0x6b00_2194),
            (LDD_F_SV_TYPE_OST, 0, N1, 0x6b00_219a),
            (LDD_F_SV_TYPE_MDT, 1, N2, 0x6b00_21e3),
            (LDD_F_SV_TYPE_OST, 1, N2, 0x6b00_21fe),
        ];
        for (kind, index, nid, now) in steps {
            let result = register(&mut logs, info(kind, index, nid), None, now);
            assert!(result.unwrap().changed);
        }
        for name in [
            "testfs-client",
            "testfs-MDT0000",
            "testfs-MDT0001",
            "testfs-OST0000",
            "testfs-OST0001",
        ] {
            let path = format!("{}/../mgc/testdata/{name}.llog", env!("CARGO_MANIFEST_DIR"));
            let real = std::fs::read(path).unwrap();
            let ours = logs.get(name).unwrap().llog.build();
            assert!(ours == normalise(&real), "{name} differs");
        }
    }

    #[test]
    fn registering_again_with_the_same_nids_changes_no_log() {
        let mut logs = logs();
        register(&mut logs, info(LDD_F_SV_TYPE_MDT, 0, "10.0.0.1@tcp"), None, 1).unwrap();
        let before = logs.get("testfs-client").unwrap().llog.build();
        for flags in [LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_MDT | LDD_F_UPDATE] {
            let again = MgsTargetInfo {
                mti_flags: flags,
                ..info(0, 0, "10.0.0.1@tcp")
            };
            assert!(!register(&mut logs, again, None, 2).unwrap().changed);
        }
        assert_eq!(logs.get("testfs-client").unwrap().llog.build(), before);
    }

    #[test]
    fn a_moved_target_has_its_new_nid_in_all_logs() {
        let mut logs = logs();
        register(&mut logs, info(LDD_F_SV_TYPE_MDT, 0, "10.0.0.1@tcp"), None, 1).unwrap();
        register(&mut logs, info(LDD_F_SV_TYPE_OST, 3, "10.0.0.2@tcp"), None, 1).unwrap();
        for (kind, index) in [(LDD_F_SV_TYPE_MDT, 0), (LDD_F_SV_TYPE_OST, 3)] {
            let flags = kind | LDD_F_UPDATE;
            let moved = MgsTargetInfo {
                mti_flags: flags,
                ..info(0, index, "10.0.0.9@tcp")
            };
            assert!(register(&mut logs, moved, None, 2).unwrap().changed);
        }
        let new: Vec<Nid> = vec!["10.0.0.9@tcp".parse().unwrap()];
        for log in ["testfs-client", "testfs-MDT0000"] {
            let config = config(&logs, log);
            assert_eq!(config.ost(OstIndex(3)).unwrap().nids, new, "{log}");
        }
        assert_eq!(config(&logs, "testfs-client").mdt(0).unwrap().nids, new);
    }

    #[test]
    fn a_target_without_index_gets_the_lowest_free_one() {
        let mut logs = logs();
        let any = |kind| MgsTargetInfo {
            mti_flags: kind | LDD_F_NEED_INDEX | LDD_F_VIRGIN,
            ..info(0, 0, "10.0.0.1")
        };
        register(&mut logs, any(LDD_F_SV_TYPE_MDT), None, 1).unwrap();
        register(&mut logs, info(LDD_F_SV_TYPE_OST, 1, "10.0.0.1"), None, 1).unwrap();
        for (index, name) in [(0, "testfs-OST0000"), (2, "testfs-OST0002")] {
            let got = register(&mut logs, any(LDD_F_SV_TYPE_OST), None, 1).unwrap().info;
            assert_eq!((got.mti_stripe_index, got.mti_svname.as_str()), (index, name));
            assert_eq!(
                got.mti_flags & (LDD_F_NEED_INDEX | LDD_F_REWRITE_LDD),
                LDD_F_REWRITE_LDD
            );
        }
        let refused = register(&mut logs, info(LDD_F_SV_TYPE_OST, 2, "10.0.0.1"), None, 1).unwrap_err();
        assert_eq!(refused.errno(), Errno::EADDRINUSE, "{refused}");
    }

    #[test]
    fn mdt0000_must_register_first() {
        let mut logs = logs();
        let early = register(&mut logs, info(LDD_F_SV_TYPE_OST, 0, "10.0.0.1"), None, 1).unwrap_err();
        assert!(early.to_string().contains("MDT0000"), "{early}");
    }

    #[test]
    fn invalid_registrations_are_refused() {
        let mut logs = logs();
        let good = info(LDD_F_SV_TYPE_MDT, 0, "10.0.0.1");
        let bad = [
            MgsTargetInfo {
                mti_fsname: Text::truncated("far_too_long"),
                ..good.clone()
            },
            MgsTargetInfo {
                mti_fsname: Text::truncated("a/b"),
                ..good.clone()
            },
            MgsTargetInfo {
                mti_flags: LDD_F_SV_TYPE_MDT | LDD_F_SV_TYPE_OST,
                ..good.clone()
            },
            MgsTargetInfo {
                mti_stripe_index: 0xffff,
                ..good.clone()
            },
            MgsTargetInfo {
                mti_nid_count: 33,
                ..good.clone()
            },
            MgsTargetInfo {
                mti_nid_count: 0,
                ..good
            },
        ];
        for info in bad {
            assert!(register(&mut logs, info, None, 1).is_err());
        }
    }

    #[test]
    fn failover_nodes_become_further_connections() {
        let mut logs = logs();
        let params = Text::truncated("failover.node=10.0.0.1@tcp:10.0.0.2@tcp,10.1.0.2@tcp1");
        let mdt = MgsTargetInfo {
            mti_params: params,
            ..info(LDD_F_SV_TYPE_MDT, 0, "10.0.0.1@tcp")
        };
        register(&mut logs, mdt, None, 1).unwrap();
        let nids = config(&logs, "testfs-client").mdt(0).unwrap().nids.clone();
        let shown: Vec<String> = nids.iter().map(Nid::to_string).collect();
        assert_eq!(shown, ["10.0.0.1@tcp", "10.0.0.2@tcp", "10.1.0.2@tcp1"]);
    }

    const STORE_A: &str = "5c3f2f4e-0000-4000-8000-00000000000a";
    const STORE_B: &str = "5c3f2f4e-0000-4000-8000-00000000000b";

    /// The message of a refusal because another store has the index.
    fn index_in_use_error(result: Result<RegisterResult, MgsError>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.errno(), Errno::EADDRINUSE, "{error}");
        error.to_string()
    }

    #[test]
    fn an_index_belongs_to_one_store_until_replaced() {
        let mut logs = logs();
        register(&mut logs, info(LDD_F_SV_TYPE_MDT, 0, "10.0.0.1"), None, 1).unwrap();
        let ost = |flags, nid| MgsTargetInfo {
            mti_flags: LDD_F_SV_TYPE_OST | LDD_F_UPDATE | flags,
            ..info(0, 0, nid)
        };
        let mut from = |store, flags, nid| register(&mut logs, ost(flags, nid), store, 2);
        from(Some(STORE_A), 0, "10.0.0.2").unwrap();
        let why = index_in_use_error(from(Some(STORE_B), 0, "10.0.0.3"));
        assert!(
            why.contains("the MGS has another store of testfs-OST0000 (uuid")
                && why.contains(STORE_A)
                && why.contains("--replace"),
            "{why}"
        );
        index_in_use_error(from(None, 0, "10.0.0.3"));
        index_in_use_error(from(Some(STORE_B), LDD_F_VIRGIN, "10.0.0.3"));
        // The same store registers again, then with another NID.
        assert!(!from(Some(STORE_A), 0, "10.0.0.2").unwrap().changed);
        assert!(from(Some(STORE_A), 0, "10.0.0.4").unwrap().changed);
        // Another store replaces it; the MGS refuses the old one from then on.
        assert!(from(Some(STORE_B), LDD_F_WRITECONF, "10.0.0.3").unwrap().changed);
        assert!(!from(Some(STORE_B), 0, "10.0.0.3").unwrap().changed);
        index_in_use_error(from(Some(STORE_A), 0, "10.0.0.2"));
        let nids: Vec<Nid> = vec!["10.0.0.3".parse().unwrap()];
        assert_eq!(
            config(&logs, "testfs-client").ost(OstIndex(0)).unwrap().nids,
            nids
        );
        // A Lustre target that replaces it may register again, too.
        let mut from = |store, flags, nid| register(&mut logs, ost(flags, nid), store, 3);
        from(None, LDD_F_WRITECONF, "10.0.0.5").unwrap();
        assert!(!from(None, 0, "10.0.0.5").unwrap().changed);
    }

    #[test]
    fn a_target_that_first_sent_no_uuid_keeps_its_index_and_binds_it_to_its_store() {
        let mut logs = logs();
        register(&mut logs, info(LDD_F_SV_TYPE_MDT, 0, "10.0.0.1"), None, 1).unwrap();
        let mdt = MgsTargetInfo {
            mti_flags: LDD_F_SV_TYPE_MDT | LDD_F_UPDATE,
            ..info(0, 0, "10.0.0.1")
        };
        register(&mut logs, mdt.clone(), Some(STORE_A), 2).unwrap();
        index_in_use_error(register(&mut logs, mdt, Some(STORE_B), 3));
    }

    #[test]
    fn further_mdts_join_with_any_index_once_mdt0000_has_registered() {
        let mut logs = logs();
        let early = register(&mut logs, info(LDD_F_SV_TYPE_MDT, 1, "10.0.0.2"), None, 1).unwrap_err();
        assert_eq!(early.errno(), Errno::EAGAIN, "{early}");
        for (index, nid) in [(0, "10.0.0.1"), (7, "10.0.0.7"), (1, "10.0.0.2")] {
            register(&mut logs, info(LDD_F_SV_TYPE_MDT, index, nid), None, 1).unwrap();
        }
        let indices = |log: &str| Vec::from_iter(config(&logs, log).mdts.iter().map(|t| t.index));
        assert_eq!(indices("testfs-client"), [0, 1, 7]);
        assert_eq!(indices("testfs-MDT0000"), [1, 7]);
        assert_eq!(indices("testfs-MDT0007"), [0, 1]);
    }
}
