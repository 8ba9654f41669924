//! A target's saved configuration from the MGS: the targets of its file system, and the nodemaps.
//! With it, the target can start before its MGS.
//!
//! A damaged file counts as missing: a target must never start with more rights for clients than
//! the administrator gave them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use mgc::{ConfParam, FsConfig, NodemapTable, Nodemaps, TargetConf};
use osd::TargetFiles;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use wire::Nid;
use wire::checksum::ChecksumType;

/// Name of the configuration's file.
pub const SAVED_CONFIG_FILE: &str = "config.json";
/// Format version of the file.
const FORMAT_VERSION: u32 = 1;

/// The saved configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SavedConfig {
    /// The targets of the file system.
    pub(crate) config: FsConfig,
    /// The rights of clients.
    pub(crate) nodemaps: NodemapTable,
}

/// A target in the file.
#[derive(Serialize, Deserialize)]
struct Target {
    name: String,
    index: u32,
    uuid: String,
    nids: Vec<String>,
    active: bool,
}

/// The first line of the file, as JSON. The second line is the CRC-32C of the first line.
#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    fsname: String,
    mdts: Vec<Target>,
    osts: Vec<Target>,
    nodemaps: BTreeMap<String, String>,
}

impl Target {
    fn from_conf(target: &TargetConf) -> Target {
        Target {
            name: target.name.clone(),
            index: target.index,
            uuid: target.uuid.clone(),
            nids: target.nids.iter().map(Nid::to_string).collect(),
            active: target.active,
        }
    }

    fn into_conf(self) -> Result<TargetConf, String> {
        let nid = |text: &String| text.parse().map_err(|_| format!("'{text}' is not a NID"));
        Ok(TargetConf {
            nids: self.nids.iter().map(nid).collect::<Result<_, _>>()?,
            name: self.name,
            index: self.index,
            uuid: self.uuid,
            active: self.active,
        })
    }
}

fn checksum(line: &str) -> String {
    let line = Bytes::copy_from_slice(line.as_bytes());
    format!("crc32c {:08x}", ChecksumType::Crc32c.of([], [&line]))
}

fn build(config: &FsConfig, nodemaps: &NodemapTable) -> Result<String, serde_json::Error> {
    let encode = |targets: &[TargetConf]| targets.iter().map(Target::from_conf).collect();
    let line = serde_json::to_string(&Contents {
        format: FORMAT_VERSION,
        fsname: config.fsname.clone(),
        mdts: encode(&config.mdts),
        osts: encode(&config.osts),
        nodemaps: nodemaps.records(),
    })?;
    let checksum = checksum(&line);
    Ok(format!("{line}\n{checksum}\n"))
}

fn parse(text: &str, fsname: &str) -> Result<SavedConfig, String> {
    let (line, rest) = text.split_once('\n').ok_or("it is cut off")?;
    if rest.trim_end() != checksum(line) {
        return Err("its checksum is wrong".to_owned());
    }
    let contents: Contents = serde_json::from_str(line).map_err(|e| e.to_string())?;
    if contents.format != FORMAT_VERSION {
        return Err(format!("its format {} is not known", contents.format));
    }
    if contents.fsname != fsname {
        return Err(format!("it belongs to file system '{}'", contents.fsname));
    }
    let decode = |targets: Vec<Target>| {
        targets
            .into_iter()
            .map(Target::into_conf)
            .collect::<Result<_, _>>()
    };
    let records = contents.nodemaps.into_iter().map(|(name, value)| ConfParam {
        target: String::new(),
        name,
        value,
    });
    let nodemaps = NodemapTable::from_params(&records.collect::<Vec<_>>())?;
    Ok(SavedConfig {
        config: FsConfig {
            fsname: contents.fsname,
            mdts: decode(contents.mdts)?,
            osts: decode(contents.osts)?,
            ..FsConfig::default()
        },
        nodemaps,
    })
}

/// The saved configuration among a target's files; `None` if there is none, or if it is damaged or
/// belongs to another file system.
pub(crate) fn read(files: &dyn TargetFiles, fsname: &str) -> Option<SavedConfig> {
    let saved = match files.read(SAVED_CONFIG_FILE) {
        Ok(None) => return None,
        Ok(Some(contents)) => String::from_utf8(contents)
            .map_err(|e| e.to_string())
            .and_then(|text| parse(&text, fsname)),
        Err(e) => Err(e.to_string()),
    };
    let warn = |why: &String| {
        tracing::warn!(
            "{SAVED_CONFIG_FILE} in {}: {why}; the target waits for the MGS",
            files.place()
        );
    };
    saved.inspect_err(warn).ok()
}

/// Saves the configuration now and after each change. Returns when the connection to the MGS ends.
pub(crate) async fn save_changes(
    files: Arc<dyn TargetFiles>,
    mut config: watch::Receiver<Arc<FsConfig>>,
    nodemaps: Arc<Nodemaps>,
) {
    let mut nodemap_changes = nodemaps.changes();
    loop {
        let current = config.borrow_and_update().clone();
        if let Err(why) = write(&files, &current, &nodemaps.table()).await {
            tracing::warn!(
                "cannot save the configuration in {}: {why}; the target cannot start without its MGS until this succeeds",
                files.place()
            );
        }
        let changed = tokio::select! {
            biased;
            changed = config.changed() => changed,
            changed = nodemap_changes.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Writes the configuration, unless the file has it already. Fails with the reason.
async fn write(
    files: &Arc<dyn TargetFiles>,
    config: &FsConfig,
    nodemaps: &NodemapTable,
) -> Result<(), String> {
    let text = build(config, nodemaps).map_err(|e| e.to_string())?;
    let files = files.clone();
    let write = move || match files.read(SAVED_CONFIG_FILE) {
        Ok(Some(old)) if old == text.as_bytes() => Ok(()),
        _ => files.replace(SAVED_CONFIG_FILE, text.as_bytes()),
    };
    let written = cpt::spawn_blocking(write).await.map_err(|e| e.to_string())?;
    written.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use osd::{LocalFiles, MemoryFiles};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn example() -> (FsConfig, NodemapTable) {
        let target = |name: &str, index| TargetConf {
            name: name.to_owned(),
            index,
            uuid: format!("{name}_UUID"),
            nids: vec!["10.0.0.1@tcp".parse().unwrap(), "10.0.0.2@tcp3".parse().unwrap()],
            active: index != 1,
        };
        let config = FsConfig {
            fsname: "fs".to_owned(),
            mdts: vec![target("fs-MDT0000", 0)],
            osts: vec![target("fs-OST0000", 0), target("fs-OST0001", 1)],
            ..FsConfig::default()
        };
        let mut nodemaps = NodemapTable::default();
        nodemaps.modify("default", "deny_mount", "1").unwrap();
        nodemaps.add("lab").unwrap();
        nodemaps.add_range("lab", "10.0.1.[1-9]@tcp").unwrap();
        (config, nodemaps)
    }

    #[tokio::test]
    async fn saved_config_is_read_back_for_its_file_system_only() {
        let dir = tempfile::tempdir().unwrap();
        let files: Arc<dyn TargetFiles> = Arc::new(LocalFiles(dir.path().to_owned()));
        assert_eq!(read(&*files, "fs"), None);
        let (config, nodemaps) = example();
        // A leftover of an interrupted write is replaced.
        fs::write(dir.path().join("config.json.new"), "half").unwrap();
        for _ in 0..2 {
            write(&files, &config, &nodemaps).await.unwrap();
        }
        let mode = fs::metadata(dir.path().join(SAVED_CONFIG_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(read(&*files, "fs"), Some(SavedConfig { config, nodemaps }));
        assert_eq!(read(&*files, "other"), None);
    }

    #[test]
    fn damaged_copy_is_ignored() {
        let files = MemoryFiles::default();
        let (config, nodemaps) = example();
        let text = build(&config, &nodemaps).unwrap().into_bytes();
        for i in 0..text.len() - 1 {
            let mut damaged = text.clone();
            damaged[i] ^= 1;
            files.replace(SAVED_CONFIG_FILE, &damaged).unwrap();
            assert_eq!(read(&files, "fs"), None, "byte {i}");
            files.replace(SAVED_CONFIG_FILE, &text[..i]).unwrap();
            assert_eq!(read(&files, "fs"), None, "the first {i} bytes");
        }
    }
}
