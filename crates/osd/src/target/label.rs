//! The label of a target: what it is, in a small text file, one `name = value` a line.

use std::{fmt, fs, io, path::Path, str::FromStr};

use wire::Nid;

use super::{LABEL, LABEL_DESTROYED, LABEL_NEW, TargetError};

/// The on-disk format that this version writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 2;
const LABEL_MAX_BYTES: u64 = 64 << 10;

/// What kind of target it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TargetKind {
    /// Management target.
    Mgs,
    /// Metadata target.
    Mdt,
    /// Object target.
    Ost,
}

/// What a target is, as `mkfs` wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetLabel {
    /// Format of the whole directory.
    pub format_version: u32,
    /// Its kind.
    pub kind: TargetKind,
    /// The file system that it is part of; empty for a management target.
    pub fsname: String,
    /// Its index among the targets of its kind.
    pub index: u32,
    /// A number of this very target's own, so that a restored or swapped directory is noticed.
    pub uuid: String,
    /// Where the management server is.
    pub mgsnode: Vec<Nid>,
    /// Where it may be served, in order of preference; empty: where it is started.
    pub service_nodes: Vec<Nid>,
    /// It has run: its stores are there, and that one is missing or empty is an error.
    pub initialised: bool,
    /// Parameters given to `mkfs`, in order: `name=value`.
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
    /// A new target's label. `uuid` is to be unique.
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

    /// Its name, as Lustre has it: `MGS`, `testfs-MDT0000`, `testfs-OST000a`.
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

    fn from_text(dir: &Path, text: &str) -> Result<TargetLabel, TargetError> {
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
    /// Reads the label of a target that may be in use.
    pub fn read(path: &Path) -> Result<TargetLabel, TargetError> {
        if !path.is_dir() {
            return Err(TargetError::NoDirectory(path.into()));
        }
        let file = path.join(LABEL);
        let text = match fs::metadata(&file) {
            Ok(m) if m.len() > LABEL_MAX_BYTES => {
                let why = format!("{} bytes long, expected at most {LABEL_MAX_BYTES}", m.len());
                return Err(TargetError::BadLabel {
                    path: file,
                    line: 0,
                    why,
                });
            }
            Ok(_) => fs::read_to_string(&file).map_err(|source| TargetError::Io { path: file, source })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(if path.join(LABEL_NEW).exists() {
                    TargetError::HalfMade(path.into())
                } else if path.join(LABEL_DESTROYED).exists() {
                    TargetError::HalfDestroyed(path.into())
                } else {
                    TargetError::NotATarget(path.into())
                });
            }
            Err(source) => return Err(TargetError::Io { path: file, source }),
        };
        TargetLabel::from_text(path, &text)
    }
}
