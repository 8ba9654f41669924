//! The label of a target: its identity, in a small text file with one `name = value` per line.

use std::{fmt, path::Path, str::FromStr};

use wire::Nid;

use super::{LABEL, TargetError, stored_label::StoredLabel};

/// The newest on-disk format; this version writes it.
pub const FORMAT_VERSION: u32 = 3;

/// The kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetKind {
    /// Management target.
    Mgs,
    /// Metadata target.
    Mdt,
    /// Object storage target.
    Ost,
}

/// The identity of a target, written by `mkfs`, and whether the target ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetLabel {
    /// Format of the whole directory.
    pub format_version: u32,
    /// MGS, MDT or OST.
    pub kind: TargetKind,
    /// The file system of the target; empty for an MGS.
    pub fsname: String,
    /// The index among the file system's targets of this kind.
    pub index: u32,
    /// A unique id of the target, to detect a restored or swapped directory.
    pub uuid: String,
    /// NIDs of the MGS.
    pub mgsnode: Vec<Nid>,
    /// NIDs of the target's servers, in order of preference; empty: the node that starts it.
    pub service_nodes: Vec<Nid>,
    /// The target ran before: its stores exist, and a missing or empty one is an error.
    pub initialised: bool,
    /// Parameters given to `mkfs`, in order, as name and value.
    pub params: Vec<(String, String)>,
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TargetKind::Mgs => "mgs",
            TargetKind::Mdt => "mdt",
            TargetKind::Ost => "ost",
        })
    }
}

impl FromStr for TargetKind {
    type Err = String;
    fn from_str(s: &str) -> Result<TargetKind, String> {
        match s {
            "mgs" => Ok(TargetKind::Mgs),
            "mdt" => Ok(TargetKind::Mdt),
            "ost" => Ok(TargetKind::Ost),
            _ => Err(format!("kind is mgs, mdt or ost, not '{s}'")),
        }
    }
}

impl TargetLabel {
    /// Whether several nodes may run the target: they share its store.
    pub fn has_several_nodes(&self) -> bool {
        self.service_nodes.len() > 1
    }

    /// The label of a new target. `uuid` must be unique.
    pub fn new(kind: TargetKind, fsname: &str, index: u32, uuid: &str) -> TargetLabel {
        TargetLabel {
            format_version: FORMAT_VERSION,
            kind,
            fsname: fsname.into(),
            index,
            uuid: uuid.into(),
            mgsnode: Vec::new(),
            service_nodes: Vec::new(),
            initialised: false,
            params: Vec::new(),
        }
    }

    /// The target's name in Lustre's form: `MGS`, `testfs-MDT0000`, `testfs-OST000a`.
    pub fn svname(&self) -> String {
        match self.kind {
            TargetKind::Mgs => "MGS".into(),
            TargetKind::Mdt => format!("{}-MDT{:04x}", self.fsname, self.index),
            TargetKind::Ost => format!("{}-OST{:04x}", self.fsname, self.index),
        }
    }

    pub(super) fn to_text(&self) -> String {
        let nids = |v: &[Nid]| v.iter().map(Nid::to_string).collect::<Vec<_>>().join(",");
        let mut t = format!(
            "# A Nacre target. Written by 'nacre mkfs'; do not edit while it is served.\n\
             format_version = {}\nkind = {}\nfsname = {}\nindex = {}\nuuid = {}\nmgsnode = {}\nservice_nodes = {}\ninitialised = {}\n",
            self.format_version,
            self.kind,
            self.fsname,
            self.index,
            self.uuid,
            nids(&self.mgsnode),
            nids(&self.service_nodes),
            self.initialised,
        );
        for (name, value) in &self.params {
            t.push_str(&format!("param = {name}={value}\n"));
        }
        t
    }

    pub(super) fn from_text(dir: &Path, text: &str) -> Result<TargetLabel, TargetError> {
        let path = dir.join(LABEL);
        let bad = |line: usize, why: String| TargetError::BadLabel {
            path: path.clone(),
            line,
            why,
        };
        let mut label = TargetLabel::new(TargetKind::Mgs, "", 0, "");
        label.format_version = 0;
        let mut kind = None;
        for (n, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line
                .split_once('=')
                .ok_or_else(|| bad(n, format!("expected 'name = value', found '{line}'")))?;
            let value = value.trim();
            let number = || {
                value
                    .parse::<u32>()
                    .map_err(|e| bad(n, format!("'{value}': {e}")))
            };
            let nids = || -> Result<Vec<Nid>, TargetError> {
                let each = value.split(',').map(str::trim).filter(|s| !s.is_empty());
                each.map(|s| s.parse().map_err(|_| bad(n, format!("'{s}' is not a NID"))))
                    .collect()
            };
            match name.trim() {
                "format_version" => {
                    label.format_version = number()?;
                    if label.format_version > FORMAT_VERSION {
                        return Err(TargetError::NewerFormat {
                            path: dir.into(),
                            found: label.format_version,
                        });
                    }
                }
                "kind" => kind = Some(value.parse().map_err(|why| bad(n, why))?),
                "fsname" => label.fsname = value.into(),
                "index" => label.index = number()?,
                "uuid" => label.uuid = value.into(),
                "mgsnode" => label.mgsnode = nids()?,
                "service_nodes" => label.service_nodes = nids()?,
                "initialised" => {
                    label.initialised = value.parse().map_err(|e| bad(n, format!("'{value}': {e}")))?
                }
                "param" => {
                    let (p, v) = value
                        .split_once('=')
                        .ok_or_else(|| bad(n, format!("expected 'param = name=value', found '{line}'")))?;
                    label.params.push((p.trim().into(), v.trim().into()));
                }
                other => return Err(bad(n, format!("unknown name '{other}'"))),
            }
        }
        if label.format_version == 0 {
            return Err(bad(0, "no format_version".into()));
        }
        label.kind = kind.ok_or_else(|| bad(0, "no kind".into()))?;
        Ok(label)
    }
}

impl TargetLabel {
    /// Reads the label of a target, which may be in use; if it is damaged, its copy.
    ///
    /// # Errors
    ///
    /// [`TargetError::NoDirectory`], [`TargetError::NotATarget`], [`TargetError::BadLabel`], or
    /// [`TargetError::IncompleteMkfs`] and [`TargetError::IncompleteDestroy`] after an
    /// interruption.
    pub fn read(path: &Path) -> Result<TargetLabel, TargetError> {
        Ok(StoredLabel::read(path)?.label)
    }
}
