//! The two files of a label: the label itself, which an administrator may edit while the target is
//! stopped, and a copy with a checksum, which replaces a damaged label.

use std::{fs, io, path::Path};

use super::{LABEL, LABEL_COPY, LABEL_DAMAGED, LABEL_DESTROYED, LABEL_NEW, TargetError, TargetLabel};
use crate::files;

/// The names of the values that an administrator may edit.
const EDITABLE: [&str; 3] = ["mgsnode", "service_nodes", "param"];
/// Maximum size of a label file, bytes.
const LABEL_MAX_BYTES: u64 = 64 << 10;
/// Name of the last line of the copy: the CRC-32C of all lines before it, in hexadecimal.
const CHECKSUM: &str = "crc32c ";

/// A label as read from its files.
pub(super) struct StoredLabel {
    pub(super) label: TargetLabel,
    /// Whether the label's file is damaged, so that the label is the copy's.
    is_damaged: bool,
    /// The copy, unless it is missing or damaged.
    copy: Option<TargetLabel>,
}

impl StoredLabel {
    /// Reads the label of a target, or its copy if the label is damaged.
    ///
    /// # Errors
    ///
    /// [`TargetError::BadLabel`] if the label is damaged and has no copy, or if label and copy
    /// name different targets; otherwise the errors of [`TargetLabel::read`].
    pub(super) fn read(dir: &Path) -> Result<StoredLabel, TargetError> {
        if !dir.is_dir() {
            return Err(TargetError::NoDirectory(dir.into()));
        }
        let copy = read_copy(dir);
        let error = match read_label(dir) {
            Ok(label) => {
                if let Some(copy) = &copy {
                    check_identity(dir, &label, copy)?;
                }
                return Ok(StoredLabel {
                    label,
                    is_damaged: false,
                    copy,
                });
            }
            Err(error) => error,
        };
        match (&error, &copy) {
            (TargetError::BadLabel { line, .. }, Some(label)) if !is_editable(dir, *line) => {
                tracing::warn!(
                    "{error}: using its copy {LABEL_COPY}; the next start repairs the label, and keeps the damaged file as {LABEL_DAMAGED}"
                );
                Ok(StoredLabel {
                    label: label.clone(),
                    is_damaged: true,
                    copy,
                })
            }
            _ => Err(error),
        }
    }

    /// Makes both files equal again. The caller has locked the target.
    pub(super) fn repair(&self, dir: &Path) -> Result<(), TargetError> {
        if self.is_damaged {
            let path = dir.join(LABEL);
            let damaged = fs::read(&path).map_err(|source| TargetError::Io { path, source })?;
            write_file(dir, LABEL_DAMAGED, &damaged)?;
            write_file(dir, LABEL, self.label.to_text().as_bytes())?;
        }
        if self.copy.as_ref() == Some(&self.label) {
            return Ok(());
        }
        if let Some(copy) = &self.copy {
            report_edit(dir, &self.label, copy);
        }
        if let Err(error) = write_copy(dir, &self.label) {
            // On a full disk a check or a removal of files may be what is needed.
            tracing::warn!("the label's copy is not up to date: {error}");
        }
        Ok(())
    }
}

/// Replaces the label and its copy.
pub(super) fn write(dir: &Path, label: &TargetLabel) -> Result<(), TargetError> {
    write_file(dir, LABEL, label.to_text().as_bytes())?;
    write_copy(dir, label)
}

/// Replaces the copy.
pub(super) fn write_copy(dir: &Path, label: &TargetLabel) -> Result<(), TargetError> {
    let text = label.to_text();
    let checksum = crc32c::crc32c(text.as_bytes());
    let text = format!("{text}{CHECKSUM}{checksum:08x}\n");
    write_file(dir, LABEL_COPY, text.as_bytes())
}

fn write_file(dir: &Path, name: &str, contents: &[u8]) -> Result<(), TargetError> {
    let path = dir.join(name);
    files::replace(&path, contents, files::FILE_MODE).map_err(|source| TargetError::Io { path, source })
}

/// Whether a line of the label has a value that an administrator edits. An error in it is more
/// likely a mistake than damage, and the copy would undo the edit.
fn is_editable(dir: &Path, line: usize) -> bool {
    let text = fs::read_to_string(dir.join(LABEL)).unwrap_or_default();
    let line = line.checked_sub(1).and_then(|n| text.lines().nth(n));
    let name = line
        .and_then(|line| line.split_once('='))
        .map(|(name, _)| name.trim());
    name.is_some_and(|name| EDITABLE.contains(&name))
}

/// Logs the values in which the label differs from the copy, after an edit or because of damage.
fn report_edit(dir: &Path, label: &TargetLabel, copy: &TargetLabel) {
    let (label, copy) = (label.to_text(), copy.to_text());
    let is_edited = |line: &&str| EDITABLE.iter().any(|name| line.starts_with(name));
    let lines_of = |text: &str, other: &str| -> Vec<String> {
        let own = text.lines().filter(is_edited);
        own.filter(|line| !other.lines().any(|l| l == *line))
            .map(str::to_owned)
            .collect()
    };
    let (new, old) = (lines_of(&label, &copy), lines_of(&copy, &label));
    if !new.is_empty() || !old.is_empty() {
        let path = dir.join(LABEL);
        tracing::warn!(?new, ?old, "{}: edited since the last start", path.display());
    }
}

fn read_label(dir: &Path) -> Result<TargetLabel, TargetError> {
    let path = dir.join(LABEL);
    let bad = |why: String| TargetError::BadLabel {
        path: path.clone(),
        line: 0,
        why,
    };
    let text = match fs::metadata(&path) {
        Ok(m) if m.len() > LABEL_MAX_BYTES => {
            return Err(bad(format!(
                "{} bytes long, expected at most {LABEL_MAX_BYTES}",
                m.len()
            )));
        }
        Ok(_) => match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Err(bad(e.to_string())),
            Err(source) => return Err(TargetError::Io { path, source }),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(if dir.join(LABEL_NEW).exists() {
                TargetError::IncompleteMkfs(dir.into())
            } else if dir.join(LABEL_DESTROYED).exists() {
                TargetError::IncompleteDestroy(dir.into())
            } else {
                TargetError::NotATarget(dir.into())
            });
        }
        Err(source) => return Err(TargetError::Io { path, source }),
    };
    TargetLabel::from_text(dir, &text)
}

/// The copy; `None` if it is missing or damaged.
fn read_copy(dir: &Path) -> Option<TargetLabel> {
    let path = dir.join(LABEL_COPY);
    let is_small = fs::metadata(&path).is_ok_and(|m| m.len() <= LABEL_MAX_BYTES);
    let text = is_small.then(|| fs::read_to_string(&path).ok()).flatten();
    let parsed = text.and_then(|text| {
        let (label, checksum) = text.split_at(text.trim_end().rfind('\n')? + 1);
        let expected = format!("{CHECKSUM}{:08x}\n", crc32c::crc32c(label.as_bytes()));
        (checksum == expected).then(|| TargetLabel::from_text(dir, label).ok())?
    });
    if parsed.is_none() && path.exists() {
        tracing::warn!(
            "{}: the copy of the label is damaged; the next start replaces it",
            path.display()
        );
    }
    parsed
}

/// Checks the values that no administrator changes.
fn check_identity(dir: &Path, label: &TargetLabel, copy: &TargetLabel) -> Result<(), TargetError> {
    // A start that raises the version writes the label before the copy.
    let version = label.format_version.min(copy.format_version);
    let values = [
        ("kind", label.kind.to_string(), copy.kind.to_string()),
        ("fsname", label.fsname.clone(), copy.fsname.clone()),
        ("index", label.index.to_string(), copy.index.to_string()),
        ("uuid", label.uuid.clone(), copy.uuid.clone()),
        (
            "format_version",
            version.to_string(),
            copy.format_version.to_string(),
        ),
    ];
    match values.into_iter().find(|(_, own, of_copy)| own != of_copy) {
        None => Ok(()),
        Some((name, own, of_copy)) => Err(TargetError::BadLabel {
            path: dir.join(LABEL),
            line: 0,
            why: format!(
                "{name} is '{own}', but '{of_copy}' in the copy {LABEL_COPY}: correct it, or remove the copy if the label is right"
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::target::{TargetDir, TargetKind};

    fn target(dir: &Path) -> TargetLabel {
        let label = TargetLabel {
            mgsnode: vec!["10.0.0.1@tcp".parse().unwrap()],
            ..TargetLabel::new(TargetKind::Ost, "testfs", 10, "0123abcd")
        };
        drop(TargetDir::create(dir, &label, |_| Ok(())).unwrap());
        label
    }

    /// Flips each bit of a file in turn, and calls `check` with a description.
    fn flip_each_bit(path: &Path, mut check: impl FnMut(&str)) {
        let good = fs::read(path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(path, &bad).unwrap();
            check(&format!("bit {bit}: {:?}", String::from_utf8_lossy(&bad)));
            fs::write(path, &good).unwrap();
        }
    }

    #[test]
    fn a_flipped_bit_in_a_label_changes_no_identity() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("t");
        let label = target(&dir);
        flip_each_bit(&dir.join(LABEL), |what| match TargetLabel::read(&dir) {
            Ok(found) => {
                let editable = TargetLabel {
                    mgsnode: label.mgsnode.clone(),
                    service_nodes: label.service_nodes.clone(),
                    params: label.params.clone(),
                    ..found
                };
                assert_eq!(editable, label, "{what}");
            }
            Err(TargetError::BadLabel { .. } | TargetError::NewerFormat { .. }) => {}
            Err(e) => panic!("{e}: {what}"),
        });
        flip_each_bit(&dir.join(LABEL_COPY), |what| {
            assert_eq!(TargetLabel::read(&dir).unwrap(), label, "{what}");
        });
    }

    #[test]
    fn a_start_repairs_a_damaged_label_and_keeps_an_edited_one() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("t");
        let label = target(&dir);
        let copy = fs::read_to_string(dir.join(LABEL_COPY)).unwrap();
        fs::write(dir.join(LABEL), "format_version = 3\nkinb = ost\n").unwrap();
        drop(TargetDir::open_read_only(&dir).unwrap());
        assert!(fs::read_to_string(dir.join(LABEL)).unwrap().contains("kinb"));
        drop(TargetDir::open(&dir).unwrap());
        assert_eq!(fs::read_to_string(dir.join(LABEL)).unwrap(), label.to_text());
        assert!(
            fs::read_to_string(dir.join(LABEL_DAMAGED))
                .unwrap()
                .contains("kinb")
        );

        let edited = format!("# moved\n{}", label.to_text().replace("10.0.0.1", "10.0.0.2"));
        fs::write(dir.join(LABEL), &edited).unwrap();
        drop(TargetDir::open(&dir).unwrap());
        assert_eq!(fs::read_to_string(dir.join(LABEL)).unwrap(), edited);
        let new_copy = fs::read_to_string(dir.join(LABEL_COPY)).unwrap();
        assert!(new_copy.contains("10.0.0.2") && !copy.contains("10.0.0.2"));

        fs::remove_file(dir.join(LABEL_COPY)).unwrap();
        drop(TargetDir::open(&dir).unwrap());
        assert_eq!(fs::read_to_string(dir.join(LABEL_COPY)).unwrap(), new_copy);
    }

    #[test]
    fn a_mistake_in_an_edited_value_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("t");
        let label = target(&dir);
        let mistake = label.to_text().replace("10.0.0.1@tcp", "10.0.0.2@tpc");
        fs::write(dir.join(LABEL), &mistake).unwrap();
        let error = TargetDir::open(&dir).unwrap_err().to_string();
        assert!(error.contains("10.0.0.2@tpc"), "{error}");
        assert_eq!(fs::read_to_string(dir.join(LABEL)).unwrap(), mistake);
    }

    #[test]
    fn a_label_of_another_target_than_its_copy_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("t");
        let label = target(&dir);
        let other = label.to_text().replace("index = 10", "index = 11");
        fs::write(dir.join(LABEL), other).unwrap();
        let error = TargetDir::open(&dir).unwrap_err().to_string();
        assert!(error.contains("index is '11', but '10' in the copy"), "{error}");
        fs::remove_file(dir.join(LABEL_COPY)).unwrap();
        assert_eq!(TargetDir::open(&dir).unwrap().label().index, 11);
    }
}
