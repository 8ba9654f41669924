//! The records of each section of a configuration log, without their markers (docs/protocol.md,
//! "Configuration (MGS)").

use wire::config::Config as Record;
use wire::{
    LCFG_ADD_CONN, LCFG_ADD_MDC, LCFG_ADD_UUID, LCFG_ATTACH, LCFG_LOV_ADD_OBD, LCFG_MOUNTOPT, LCFG_SETUP,
    LmvDesc, LovDesc, Nid, ObdUuid,
};

/// `LOV_DESC_MAGIC`. Lustre stores it in the field that once had the number of active targets.
const LOV_DESC_MAGIC: u32 = 0xb0cc_de5c;
/// Default stripe size in bytes.
const STRIPE_SIZE_DEFAULT: u64 = 4 << 20;
/// `LOV_PATTERN_RAID0`.
const PATTERN_RAID0: u32 = 1;
/// Maximum age of an OST's free space in an MDT's cache, seconds: Lustre's default.
const QOS_MAXAGE_S: u32 = 5;

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Metadata target.
    Mdt,
    /// Object storage target.
    Ost,
}

/// A target as the logs describe it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Name of the file system.
    pub(crate) fsname: String,
    /// MDT or OST.
    pub(crate) kind: Kind,
    /// Index among the targets of its kind.
    pub(crate) index: u32,
    /// The NIDs of each node that may serve the target. Clients try the first node first.
    pub(crate) nodes: Vec<Vec<Nid>>,
}

impl Target {
    /// Why the MGS refuses the target: another store has its index. `uuid` and `nids` belong to
    /// that store.
    pub(crate) fn index_in_use_reason(&self, uuid: Option<&str>, nids: &[Nid]) -> String {
        let uuid = uuid.map_or_else(String::new, |uuid| format!(" (uuid {uuid})"));
        let nids: Vec<String> = nids.iter().map(Nid::to_string).collect();
        format!(
            "the MGS has another store of {}{uuid} at {}: make this target again with another --index. If that \
             store is lost, you can instead use the same --index with --replace (`nacre mkfs`)",
            self.name(),
            nids.join(",")
        )
    }

    /// The name, such as `lus-OST0001`.
    pub(crate) fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Mdt => "MDT",
            Kind::Ost => "OST",
        };
        format!("{}-{kind}{:04x}", self.fsname, self.index)
    }

    /// The NIDs of its first node.
    pub(crate) fn nids(&self) -> &[Nid] {
        self.nodes.first().map_or(&[], |node| node)
    }

    fn uuid(&self) -> String {
        format!("{}_UUID", self.name())
    }
}

fn uuid(text: &str) -> ObdUuid {
    // Registration has checked the name: at most 8 characters plus a fixed suffix always fit.
    ObdUuid::new(text).unwrap_or_default()
}

/// The LOV: the collection of OSTs, with the default layout.
pub(crate) fn lov(name: &str) -> Vec<Record> {
    let own_uuid = format!("{name}_UUID");
    let desc = LovDesc {
        ld_active_tgt_count: LOV_DESC_MAGIC,
        ld_default_stripe_count: 1,
        ld_pattern: PATTERN_RAID0,
        ld_default_stripe_size: STRIPE_SIZE_DEFAULT,
        ld_default_stripe_offset: -1,
        ld_qos_maxage: QOS_MAXAGE_S,
        ld_uuid: uuid(&own_uuid),
        ..LovDesc::default()
    };
    vec![
        Record::new(LCFG_ATTACH, &[name, "lov", &own_uuid]),
        Record::with_struct(LCFG_SETUP, name, &desc),
    ]
}

/// The LMV: the collection of MDTs.
pub(crate) fn lmv(name: &str) -> Vec<Record> {
    let own_uuid = format!("{name}_UUID");
    let desc = LmvDesc {
        ld_uuid: uuid(&own_uuid),
        ..LmvDesc::default()
    };
    vec![
        Record::new(LCFG_ATTACH, &[name, "lmv", &own_uuid]),
        Record::with_struct(LCFG_SETUP, name, &desc),
    ]
}

/// The names of a client's mount and of its LOV and LMV.
pub(crate) fn mount_options(fsname: &str) -> Vec<Record> {
    let names = [
        format!("{fsname}-client"),
        format!("{fsname}-clilov"),
        format!("{fsname}-clilmv"),
    ];
    vec![Record::new(LCFG_MOUNTOPT, &["", &names[0], &names[1], &names[2]])]
}

/// The MDT itself, in its own log. `lov` is the LOV of its imports.
pub(crate) fn mdt_setup(target: &Target, lov: &str) -> Vec<Record> {
    let (name, index) = (target.name(), target.index.to_string());
    vec![
        Record::new(LCFG_ATTACH, &[&name, "mdt", &target.uuid()]),
        Record::new(LCFG_MOUNTOPT, &["", &name, lov]),
        Record::new(LCFG_SETUP, &[&name, &target.uuid(), &index, lov, "f"]),
    ]
}

/// The OST itself, in its own log.
pub(crate) fn ost_setup(target: &Target) -> Vec<Record> {
    let name = target.name();
    vec![
        Record::new(LCFG_ATTACH, &[&name, "obdfilter", &target.uuid()]),
        Record::new(LCFG_SETUP, &[&name, "dev", "type", "f"]),
    ]
}

/// A client's import of an MDT.
pub(crate) fn mdc(target: &Target) -> Vec<Record> {
    let (lmv, device) = (
        format!("{}-clilmv", target.fsname),
        format!("{}-mdc", target.name()),
    );
    let mut records = import(target, &device, "mdc", &format!("{lmv}_UUID"));
    let texts = [
        &lmv,
        &target.uuid(),
        &target.index.to_string(),
        "1",
        &format!("{device}_UUID"),
    ];
    records.push(Record::new(LCFG_ADD_MDC, &texts));
    records
}

/// The import of an OST in the LOV of a client or an MDT. `suffix` is the MDT's part of the
/// import's name; empty for clients.
pub(crate) fn osc(target: &Target, lov: &str, suffix: &str) -> Vec<Record> {
    let device = format!("{}-osc{suffix}", target.name());
    let mut records = import(target, &device, "osc", &format!("{lov}_UUID"));
    records.push(Record::new(
        LCFG_LOV_ADD_OBD,
        &[lov, &target.uuid(), &target.index.to_string(), "1"],
    ));
    records
}

/// The import of the MDT `target` in the LOV of another MDT. In the log of a new MDT
/// (`in_new_log`), the last record has one text more than in the logs of existing MDTs.
pub(crate) fn osp(target: &Target, lov: &str, suffix: &str, in_new_log: bool) -> Vec<Record> {
    let device = format!("{}-osp{suffix}", target.name());
    let mut records = import(target, &device, "osp", &format!("{lov}_UUID"));
    let (own, index, mdc) = (
        target.uuid(),
        target.index.to_string(),
        format!("{}-mdc_UUID", target.name()),
    );
    let texts = [lov, &own, &index, "1", &mdc];
    records.push(Record::new(
        LCFG_ADD_MDC,
        if in_new_log { &texts } else { &texts[..4] },
    ));
    records
}

/// An import with all nodes of its target. `kind` is the device's type, `collection` the UUID of
/// its LOV or LMV.
fn import(target: &Target, device: &str, kind: &str, collection: &str) -> Vec<Record> {
    let mut records = Vec::new();
    let node_name = |nids: &[Nid]| nids.first().map(Nid::to_string).unwrap_or_default();
    let add_node = |records: &mut Vec<Record>, nids: &[Nid]| {
        let name = node_name(nids);
        records.extend(
            nids.iter()
                .map(|&nid| Record::new(LCFG_ADD_UUID, &["", &name]).with_nid(nid)),
        );
        name
    };
    let (first, failover) = target
        .nodes
        .split_first()
        .map_or((&[][..], &[][..]), |(f, rest)| (&f[..], rest));
    let node = add_node(&mut records, first);
    records.push(Record::new(LCFG_ATTACH, &[device, kind, collection]));
    records.push(Record::new(LCFG_SETUP, &[device, &target.uuid(), &node]));
    for nids in failover {
        let node = add_node(&mut records, nids);
        records.push(Record::new(LCFG_ADD_CONN, &[device, &node]));
    }
    records
}
