//! The contents of a configuration log: the targets of a file system with their NIDs, the default
//! layout, parameters (docs/protocol.md, "Configuration (MGS)").
//!
//! The records of a log are commands that create and connect devices. The reader executes them and
//! keeps only the resulting targets, layout and parameters. Like Lustre, it ignores skipped
//! sections and records outside of sections.

use std::collections::BTreeMap;

use wire::config::Config as Record;

use wire::{
    CM_END, CM_EXCLUDE, CM_SKIP, CM_START, LCFG_ADD_CONN, LCFG_ADD_MDC, LCFG_ADD_UUID, LCFG_ATTACH,
    LCFG_DEL_MDC, LCFG_LOV_ADD_INA, LCFG_LOV_ADD_OBD, LCFG_LOV_DEL_OBD, LCFG_PARAM, LCFG_SET_PARAM,
    LCFG_SETUP, LovDesc, Nid, OstIndex, WireStruct,
};

/// A target, as its clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetConf {
    /// Name, such as `lus-OST0001`.
    pub name: String,
    /// Index among the targets of its kind.
    pub index: u32,
    /// UUID, such as `lus-OST0001_UUID`.
    pub uuid: String,
    /// NIDs, in the order in which to try them.
    pub nids: Vec<Nid>,
    /// False for an OST that was deactivated permanently (`osc.active=0`): its index stays in use.
    pub active: bool,
}

/// A parameter that a log sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfParam {
    /// The target or device; `general` if the name is complete.
    pub target: String,
    /// The name: complete in the logs `params`, `nodemaps` and `capa_keys`, relative to the target
    /// or device elsewhere.
    pub name: String,
    /// The value, as text.
    pub value: String,
}

/// The contents of a configuration log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FsConfig {
    /// Name of the file system; the log's name if the log belongs to none.
    pub fsname: String,
    /// MDTs, ordered by index.
    pub mdts: Vec<TargetConf>,
    /// OSTs, ordered by index.
    pub osts: Vec<TargetConf>,
    /// Default layout, if the log has one.
    pub lov_desc: Option<LovDesc>,
    /// Parameters with their last values, in the order in which the log set these values.
    pub params: Vec<ConfParam>,
}

/// A device that the log creates: an import, a LOV or LMV of imports, or a target itself.
#[derive(Default)]
struct Device {
    /// Lustre's type, such as `osc`.
    kind: String,
    /// For an import: the UUID of its target.
    target_uuid: String,
    /// For an import: the NIDs of all nodes of its target.
    nids: Vec<Nid>,
}

/// The state after the records read so far.
#[derive(Default)]
struct ConfigReader {
    /// NIDs by the names of nodes.
    nodes: BTreeMap<String, Vec<Nid>>,
    /// Devices by name.
    devices: BTreeMap<String, Device>,
    mdts: BTreeMap<u32, TargetConf>,
    osts: BTreeMap<u32, TargetConf>,
    lov_desc: Option<LovDesc>,
    params: Vec<ConfParam>,
}

impl FsConfig {
    /// Reads the records of the log `logname`.
    pub fn from_records<'a>(logname: &str, records: impl IntoIterator<Item = &'a Record>) -> FsConfig {
        let mut reader = ConfigReader::default();
        let mut live = false;
        for record in records {
            match record.as_marker() {
                Some(m) if m.cm_flags & CM_END != 0 => live = false,
                Some(m) => live = m.cm_flags & CM_START != 0 && m.cm_flags & (CM_SKIP | CM_EXCLUDE) == 0,
                None if live => reader.apply_record(record),
                None => {}
            }
        }
        let fsname = logname.rsplit_once('-').map_or(logname, |(fs, _)| fs).to_owned();
        FsConfig {
            fsname,
            mdts: reader.mdts.into_values().collect(),
            osts: reader.osts.into_values().collect(),
            lov_desc: reader.lov_desc,
            params: reader.params,
        }
    }

    /// The MDT with this index.
    pub fn mdt(&self, index: u32) -> Option<&TargetConf> {
        self.mdts.iter().find(|t| t.index == index)
    }

    /// The OST with this index.
    pub fn ost(&self, index: OstIndex) -> Option<&TargetConf> {
        self.osts.iter().find(|t| t.index == index.0)
    }
}

impl ConfigReader {
    fn apply_record(&mut self, r: &Record) {
        match r.command {
            LCFG_ADD_UUID => {
                // A NID that needs more than the record's 64-bit field is in the third text.
                let nid = if r.nid == Nid(0) {
                    r.text(2).parse().ok()
                } else {
                    Some(r.nid)
                };
                add_nids(self.nodes.entry(r.text(1).to_owned()).or_default(), nid);
            }
            LCFG_ATTACH => {
                let device = Device {
                    kind: r.text(1).to_owned(),
                    ..Device::default()
                };
                self.devices.insert(r.text(0).to_owned(), device);
            }
            LCFG_SETUP => self.apply_setup(r),
            LCFG_ADD_CONN => {
                let more = self.nodes.get(r.text(1)).cloned().unwrap_or_default();
                if let Some(device) = self.devices.get_mut(r.text(0)) {
                    add_nids(&mut device.nids, more);
                }
            }
            LCFG_LOV_ADD_OBD | LCFG_LOV_ADD_INA => {
                if let Some(target) = self.find_target(r) {
                    let active = r.command == LCFG_LOV_ADD_OBD;
                    self.osts.insert(target.index, TargetConf { active, ..target });
                }
            }
            LCFG_LOV_DEL_OBD => self.osts.retain(|_, t| t.uuid != r.text(1)),
            LCFG_ADD_MDC => {
                if let Some(target) = self.find_target(r) {
                    self.mdts.insert(target.index, target);
                }
            }
            LCFG_DEL_MDC => self.mdts.retain(|_, t| t.uuid != r.text(1)),
            LCFG_PARAM | LCFG_SET_PARAM => self.apply_param(r),
            _ => {}
        }
    }

    fn apply_setup(&mut self, r: &Record) {
        let Some(device) = self.devices.get_mut(r.text(0)) else {
            return;
        };
        if device.kind == "lov" {
            self.lov_desc = r.bufs.get(1).and_then(|b| LovDesc::from_bytes(b).ok());
        } else {
            device.target_uuid = r.text(1).to_owned();
            device.nids = self.nodes.get(r.text(2)).cloned().unwrap_or_default();
        }
    }

    /// The target of a record that adds the target to a LOV or LMV. The record's texts: name of the
    /// LOV or LMV, UUID of the target, index.
    fn find_target(&self, r: &Record) -> Option<TargetConf> {
        let uuid = r.text(1);
        let index = r.text(2).parse().ok()?;
        let device = self.devices.values().find(|d| d.target_uuid == uuid)?;
        let name = uuid.strip_suffix("_UUID").unwrap_or(uuid).to_owned();
        Some(TargetConf {
            name,
            index,
            uuid: uuid.to_owned(),
            nids: device.nids.clone(),
            active: true,
        })
    }

    fn apply_param(&mut self, r: &Record) {
        for buf in 1..r.bufs.len() {
            if let Some((name, value)) = r.text(buf).split_once('=') {
                let (target, name, value) = (r.text(0).to_owned(), name.to_owned(), value.to_owned());
                self.params.retain(|p| (&p.target, &p.name) != (&target, &name));
                self.params.push(ConfParam { target, name, value });
            }
        }
    }
}

fn add_nids(nids: &mut Vec<Nid>, more: impl IntoIterator<Item = Nid>) {
    for nid in more {
        if !nids.contains(&nid) {
            nids.push(nid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{CfgMarker, Text};

    fn nid(text: &str) -> Nid {
        text.parse().expect("a NID")
    }

    fn section(marker_flags: u32, inner: Vec<Record>) -> Vec<Record> {
        let marker = |cm_flags| {
            Record::marker(&CfgMarker {
                cm_flags,
                cm_tgtname: Text::truncated("x"),
                ..CfgMarker::default()
            })
        };
        [
            vec![marker(CM_START | marker_flags)],
            inner,
            vec![marker(CM_END | marker_flags)],
        ]
        .concat()
    }

    fn osc(index: u32, ost_nid: &str) -> Vec<Record> {
        let (name, uuid) = (
            format!("fs-OST{index:04x}-osc"),
            format!("fs-OST{index:04x}_UUID"),
        );
        vec![
            Record::new(LCFG_ADD_UUID, &["", ost_nid]).with_nid(nid(ost_nid)),
            Record::new(LCFG_ATTACH, &[&name, "osc", "fs-clilov_UUID"]),
            Record::new(LCFG_SETUP, &[&name, &uuid, ost_nid]),
            Record::new(LCFG_LOV_ADD_OBD, &["fs-clilov", &uuid, &index.to_string(), "1"]),
        ]
    }

    #[test]
    fn osts_have_their_nids_and_are_ordered_by_index() {
        let log = [
            section(0, osc(1, "10.0.0.2@tcp")),
            section(0, osc(0, "10.0.0.1@tcp")),
        ]
        .concat();
        let config = FsConfig::from_records("fs-client", &log);
        assert_eq!(config.fsname, "fs");
        assert_eq!(config.osts.iter().map(|t| t.index).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(
            config.ost(OstIndex(1)).map(|t| (t.name.as_str(), t.nids[0])),
            Some(("fs-OST0001", nid("10.0.0.2@tcp")))
        );
    }

    #[test]
    fn skipped_sections_and_records_outside_are_ignored() {
        let log = [section(CM_SKIP, osc(0, "10.0.0.1@tcp")), osc(1, "10.0.0.2@tcp")].concat();
        assert!(FsConfig::from_records("fs-client", &log).osts.is_empty());
        let moved = [log, section(0, osc(0, "10.0.0.3@tcp"))].concat();
        assert_eq!(
            FsConfig::from_records("fs-client", &moved).osts[0].nids,
            [nid("10.0.0.3@tcp")]
        );
    }

    #[test]
    fn nids_of_a_failover_node_follow_those_of_the_first_node() {
        let mut records = osc(0, "10.0.0.1@tcp");
        records.push(Record::new(LCFG_ADD_UUID, &["", "10.0.0.9@tcp"]).with_nid(nid("10.0.0.9@tcp")));
        records.push(Record::new(LCFG_ADD_CONN, &["fs-OST0000-osc", "10.0.0.9@tcp"]));
        let add = records.remove(3);
        records.push(add);
        let config = FsConfig::from_records("fs-client", &section(0, records));
        assert_eq!(config.osts[0].nids, [nid("10.0.0.1@tcp"), nid("10.0.0.9@tcp")]);
    }

    #[test]
    fn a_captured_client_log_has_its_targets() {
        let file = include_bytes!("../testdata/testfs-client.llog");
        let log = wire::llog_file::Log::parse(file).expect("a log");
        assert_eq!(log.build(), &file[..]);
        let records: Vec<Record> = log
            .live()
            .map(|r| Record::parse(r.expect("a record").data).expect("a command"))
            .collect();
        let config = FsConfig::from_records("testfs-client", &records);
        let name_index_nids = |t: &TargetConf| (t.name.clone(), t.index, t.nids.clone());
        let (first, second) = (vec![nid("10.88.0.11@tcp")], vec![nid("10.88.0.12@tcp")]);
        let expected = |kind: &str| {
            [
                (format!("testfs-{kind}0000"), 0, first.clone()),
                (format!("testfs-{kind}0001"), 1, second.clone()),
            ]
        };
        assert_eq!(
            config.mdts.iter().map(name_index_nids).collect::<Vec<_>>(),
            expected("MDT")
        );
        assert_eq!(
            config.osts.iter().map(name_index_nids).collect::<Vec<_>>(),
            expected("OST")
        );
        let desc = config.lov_desc.expect("a lov_desc");
        assert_eq!(
            (desc.ld_default_stripe_count, desc.ld_default_stripe_size),
            (1, 4 << 20)
        );
    }

    #[test]
    fn the_last_value_of_a_parameter_replaces_earlier_ones() {
        let set = |value: &str| {
            let text = format!("osc.*.max_dirty_mb={value}");
            section(0, vec![Record::new(LCFG_SET_PARAM, &["general", &text, "lctl"])])
        };
        let config = FsConfig::from_records("params", &[set("64"), set("32")].concat());
        let expected = ConfParam {
            target: "general".to_owned(),
            name: "osc.*.max_dirty_mb".to_owned(),
            value: "32".to_owned(),
        };
        assert_eq!(config.params, [expected]);
    }
}
