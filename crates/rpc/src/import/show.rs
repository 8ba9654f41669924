//! The text of the parameter `import`, in Lustre's format (docs/manual/metrics.md, "Imports").
//!
//! The text leaves out Lustre's lines for which Nacre has no value.

use super::call::NET_LATENCY;
use super::params::state_name;
use super::{Core, Import, ImportState};
use crate::at::Estimate;
use std::fmt::Write;
use std::time::Instant;
use wire::{
    Nid, OBD_CONNECT_BRW_SIZE, OBD_CONNECT_CKSUM, OBD_CONNECT_FLAGS2, OBD_CONNECT_GRANT,
    OBD_CONNECT_GRANT_PARAM, OBD_CONNECT_IBITS, OBD_CONNECT_MAX_EASIZE, OBD_CONNECT_MAXBYTES,
    OBD_CONNECT_MULTIMODRPCS, ObdConnectData,
};

/// The names of the flags in `ocd_connect_flags`, by bit. Others are shown as a number.
const FLAG_NAMES: &[(u8, &str)] = &[
    (0, "read_only"),
    (1, "lov_index"),
    (2, "connect_from_mds"),
    (3, "write_grant"),
    (4, "server_lock"),
    (5, "version"),
    (6, "mgs_nidlist"),
    (7, "acl"),
    (8, "xattr"),
    (9, "create_on_write"),
    (12, "inode_bit_locks"),
    (13, "barrier"),
    (14, "getattr_by_fid"),
    (15, "no_oh_for_devices"),
    (18, "max_byte_per_rpc"),
    (22, "early_lock_cancel"),
    (24, "adaptive_timeouts"),
    (25, "lru_resize"),
    (26, "mds_mds_connection"),
    (29, "alt_checksum_algorithm"),
    (30, "fid_is_enabled"),
    (31, "version_recovery"),
    (32, "pools"),
    (33, "grant_shrink"),
    (34, "skip_orphan"),
    (35, "large_ea"),
    (36, "full20"),
    (37, "layout_lock"),
    (38, "64bithash"),
    (39, "object_max_bytes"),
    (40, "imp_recov"),
    (41, "jobstats"),
    (42, "umask"),
    (43, "einprogress"),
    (44, "grant_param"),
    (45, "hpreq_check1"),
    (46, "lvb_type"),
    (47, "nanoseconds_times"),
    (48, "lightweight_conn"),
    (49, "short_io"),
    (50, "pingless"),
    (51, "flock_deadlock"),
    (52, "disp_stripe"),
    (53, "open_by_fid"),
    (54, "lfsck"),
    (56, "unlink_close"),
    (57, "multi_mod_rpcs"),
    (58, "dir_stripe"),
    (59, "subtree"),
    (61, "bulk_mbits"),
    (62, "compact_obdo"),
    (63, "second_flags"),
];
/// The same for `ocd_connect_flags2`.
const FLAG2_NAMES: &[(u8, &str)] = &[
    (0, "file_secctx"),
    (1, "lockaheadv2"),
    (2, "dir_migrate"),
    (3, "sum_statfs"),
    (4, "overstriping"),
    (5, "flr"),
    (7, "lock_convert"),
    (8, "archive_id_array"),
    (9, "increasing_xid"),
    (10, "selinux_policy"),
    (11, "lsom"),
    (12, "pcc"),
    (13, "crush"),
    (14, "async_discard"),
    (15, "client_encryption"),
    (17, "getattr_pfid"),
    (18, "lseek"),
    (19, "dom_lvb"),
    (20, "reply_mbits"),
    (22, "batch_rpc"),
    (23, "pcc_ro"),
    (26, "atomic_open_lock"),
    (27, "name_encryption"),
    (29, "dmv_imp_inherit"),
    (30, "encryption_fid2path"),
    (31, "replay_create"),
    (32, "large_nid"),
    (34, "unaligned_dio"),
    (37, "mirror_id_fix"),
    (39, "readdir_open"),
];

/// The attempts to connect to a NID.
#[derive(Debug)]
pub(super) struct NidStats {
    nid: Nid,
    attempts: u64,
    replied: u64,
    last_attempt_at: Instant,
}

impl Core {
    /// Records an attempt to connect to a NID.
    pub(super) fn note_attempt(&mut self, nid: Nid) {
        let now = cpt::now();
        let at = match self.nid_stats.iter().position(|stats| stats.nid == nid) {
            Some(at) => at,
            None => {
                // Otherwise the statistics of NIDs that the target no longer has would pile up.
                let nids = &self.nids;
                self.nid_stats.retain(|stats| nids.contains(&stats.nid));
                self.nid_stats.push(NidStats {
                    nid,
                    attempts: 0,
                    replied: 0,
                    last_attempt_at: now,
                });
                self.nid_stats.len() - 1
            }
        };
        let stats = &mut self.nid_stats[at];
        stats.attempts += 1;
        stats.last_attempt_at = now;
    }

    /// Records a reply to an attempt; a refusal is a reply, too.
    pub(super) fn note_attempt_replied(&mut self, nid: Nid) {
        if let Some(stats) = self.nid_stats.iter_mut().find(|stats| stats.nid == nid) {
            stats.replied += 1;
        }
    }
}

impl Import {
    /// The text of the parameter.
    pub(super) fn show(&self) -> String {
        let now = cpt::now();
        let mut core = self.core.lock();
        let state = core.machine.state();
        let mut text = Text::default();
        text.line(0, "import:");
        text.line(4, format_args!("name: {}", self.cfg.name));
        text.line(4, format_args!("target: {}", self.cfg.target_uuid));
        text.line(4, format_args!("state: {}", state_name(state)));
        let list = |names: &[String]| match names {
            [] => "[ ]".to_owned(),
            names => format!("[ {} ]", names.join(", ")),
        };
        let data = self.connect_data();
        let flags = flag_names(&data);
        text.line(4, format_args!("connect_flags: {}", list(&flags)));
        text.line(4, "connect_data:");
        for (name, value) in data_fields(&data) {
            text.line(7, format_args!("{name}: {value}"));
        }
        let flags = import_flags(state, core.machine.conn_cnt());
        text.line(4, format_args!("import_flags: {}", list(&flags)));
        text.line(4, "connection:");
        let nids: Vec<String> = core.nids.iter().map(|nid| format!("\"{nid}\"")).collect();
        text.line(7, format_args!("failover_nids: {}", list(&nids)));
        text.line(7, "nids_stats:");
        for stats in &core.nid_stats {
            let seconds = now.saturating_duration_since(stats.last_attempt_at).as_secs();
            let (nid, connects, replied) = (stats.nid, stats.attempts, stats.replied);
            text.line(
                10,
                format_args!("\"{nid}\": {{ connects: {connects}, replied: {replied}, sec_ago: {seconds} }}"),
            );
        }
        text.line(7, format_args!("current_connection: \"{}\"", core.peer()));
        text.line(
            7,
            format_args!("connection_attempts: {}", core.machine.conn_cnt()),
        );
        // An eviction begins a new generation: requests of an earlier one fail.
        text.line(7, format_args!("generation: {}", core.machine.evictions() + 1));
        let invalidations = u8::from(state == ImportState::Evicted);
        text.line(7, format_args!("in-progress_invalidations: {invalidations}"));
        if let Some(heard_at) = core.machine.heard_at() {
            let seconds = now.saturating_duration_since(heard_at).as_secs();
            text.line(7, format_args!("idle: {seconds} sec"));
        }
        text.line(4, "rpcs:");
        text.line(7, format_args!("inflight: {}", core.unreplied.len()));
        text.line(7, format_args!("timeouts: {}", self.stats.timeouts()));
        text.line(7, format_args!("avg_waittime: {} usecs", self.stats.mean_wait()));
        text.line(4, "service_estimates:");
        let longest = core.estimates.values_mut().map(|estimate| estimate.secs(now));
        let services = longest.max().unwrap_or_else(|| {
            let cfg = self.rpc.config();
            Estimate::new(now, cfg.at_min, cfg.at_max, cfg.at_history).secs(now)
        });
        text.line(7, format_args!("services: {services} sec"));
        text.line(7, format_args!("network: {} sec", NET_LATENCY.as_secs()));
        text.line(4, "transactions:");
        // The import checks its list of requests whenever it learns of a commit, so both are equal.
        let committed = core.uncommitted.last_committed();
        text.line(7, format_args!("peer_committed: {committed}"));
        text.line(7, format_args!("last_checked: {committed}"));
        drop(core);
        for (name, averages) in self.stats.data_averages() {
            text.line(4, format_args!("{name}_data_averages:"));
            text.line(7, format_args!("bytes_per_rpc: {}", averages.bytes));
            text.line(7, format_args!("usecs_per_rpc: {}", averages.usecs));
            // 1 byte per microsecond is 1 MB per second.
            let rate = averages.bytes as f64 / averages.usecs.max(1) as f64;
            text.line(7, format_args!("MB_per_sec: {rate:.2}"));
        }
        text.0
    }
}

/// Lines with indentation.
#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, indent: usize, line: impl std::fmt::Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{:indent$}{line}", "");
    }
}

/// The names of the granted connect flags.
fn flag_names(data: &ObdConnectData) -> Vec<String> {
    let flags2 = match data.ocd_connect_flags & OBD_CONNECT_FLAGS2 {
        0 => 0,
        _ => data.ocd_connect_flags2,
    };
    [(data.ocd_connect_flags, FLAG_NAMES), (flags2, FLAG2_NAMES)]
        .into_iter()
        .flat_map(|(flags, names)| {
            let bits = (0..64u8).filter(move |bit| flags >> bit & 1 == 1);
            bits.map(|bit| {
                let named = names.iter().find(|(known, _)| *known == bit);
                named.map_or_else(|| format!("{:#x}", 1u64 << bit), |(_, name)| (*name).to_owned())
            })
        })
        .collect()
}

/// The granted fields of the connect data.
fn data_fields(data: &ObdConnectData) -> Vec<(&'static str, String)> {
    let version = data.ocd_version.to_be_bytes().map(|part| part.to_string());
    let mut fields = vec![
        ("flags", format!("{:#x}", data.ocd_connect_flags)),
        ("instance", data.ocd_instance.to_string()),
        ("target_version", version.join(".")),
    ];
    let mut granted = |flag, name, value: String| {
        if data.ocd_connect_flags & flag != 0 {
            fields.push((name, value));
        }
    };
    let power = |bits: u8| 1u64.checked_shl(bits.into()).unwrap_or(0);
    let block = power(data.ocd_grant_blkbits);
    let extent = u64::from(data.ocd_grant_max_blks).saturating_mul(block);
    let tax = u64::from(data.ocd_grant_tax_kb) << 10;
    let grant_inode = power(data.ocd_grant_inobits);
    granted(OBD_CONNECT_GRANT, "initial_grant", data.ocd_grant.to_string());
    granted(
        OBD_CONNECT_BRW_SIZE,
        "max_brw_size",
        data.ocd_brw_size.to_string(),
    );
    granted(
        OBD_CONNECT_IBITS,
        "ibits_known",
        format!("{:#x}", data.ocd_ibits_known),
    );
    granted(OBD_CONNECT_GRANT_PARAM, "grant_block_size", block.to_string());
    granted(
        OBD_CONNECT_GRANT_PARAM,
        "grant_inode_size",
        grant_inode.to_string(),
    );
    granted(
        OBD_CONNECT_GRANT_PARAM,
        "grant_max_extent_size",
        extent.to_string(),
    );
    granted(OBD_CONNECT_GRANT_PARAM, "grant_extent_tax", tax.to_string());
    granted(
        OBD_CONNECT_CKSUM,
        "cksum_types",
        format!("{:#x}", data.ocd_cksum_types),
    );
    granted(
        OBD_CONNECT_MAX_EASIZE,
        "max_easize",
        data.ocd_max_easize.to_string(),
    );
    granted(
        OBD_CONNECT_MAXBYTES,
        "max_object_bytes",
        data.ocd_maxbytes.to_string(),
    );
    granted(
        OBD_CONNECT_MULTIMODRPCS,
        "max_mod_rpcs",
        data.ocd_maxmodrpcs.to_string(),
    );
    fields
}

/// The names of the import's flags.
fn import_flags(state: ImportState, attempts: u32) -> Vec<String> {
    let is_invalid = matches!(state, ImportState::Evicted | ImportState::Closed);
    let flags = [
        (is_invalid, "IMPF_INVALID"),
        (state != ImportState::Closed, "IMPF_PINGABLE"),
        (attempts > 0, "IMPF_CONNECT_TRIED"),
    ];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set);
    set.map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_real_server_have_the_names_of_lustre() {
        // The output of lctl on a client of version 2.17.57, for an OSC and its connect flags.
        let data = ObdConnectData {
            ocd_connect_flags: 0xa042_7af2_e344_0038,
            ocd_connect_flags2: 0x4_0014_8202,
            ..Default::default()
        };
        assert_eq!(
            flag_names(&data).join(", "),
            "write_grant, server_lock, version, max_byte_per_rpc, early_lock_cancel, adaptive_timeouts, \
             lru_resize, alt_checksum_algorithm, fid_is_enabled, version_recovery, grant_shrink, full20, \
             layout_lock, 64bithash, object_max_bytes, jobstats, einprogress, grant_param, hpreq_check1, \
             lvb_type, short_io, lfsck, bulk_mbits, second_flags, lockaheadv2, increasing_xid, \
             client_encryption, lseek, reply_mbits, unaligned_dio"
        );
        let data = ObdConnectData {
            ocd_connect_flags: 1 << 55,
            ocd_connect_flags2: 1,
            ..Default::default()
        };
        assert_eq!(
            flag_names(&data),
            ["0x80000000000000"],
            "the second flags do not count"
        );
    }

    #[test]
    fn connect_data_has_the_granted_fields_only() {
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_GRANT | OBD_CONNECT_GRANT_PARAM | OBD_CONNECT_CKSUM,
            ocd_version: 0x0211_393e,
            ocd_instance: 1,
            ocd_grant: 8_437_760,
            ocd_grant_blkbits: 12,
            ocd_grant_inobits: 5,
            ocd_grant_max_blks: 16384,
            ocd_grant_tax_kb: 24,
            ocd_cksum_types: 0xf2,
            ocd_maxbytes: 5,
            ..Default::default()
        };
        let lines: Vec<String> = data_fields(&data)
            .into_iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        assert_eq!(
            lines,
            [
                "flags: 0x100020000008",
                "instance: 1",
                "target_version: 2.17.57.62",
                "initial_grant: 8437760",
                "grant_block_size: 4096",
                "grant_inode_size: 32",
                "grant_max_extent_size: 67108864",
                "grant_extent_tax: 24576",
                "cksum_types: 0xf2",
            ]
        );
    }
}
