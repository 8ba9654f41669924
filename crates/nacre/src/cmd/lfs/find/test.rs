//! The tests of `lfs find`, and the file that they test.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use wire::file_mode;
use wire::striping::{LovLayout, PlainLayout};

use super::super::amount::{Amount, Sign, binary_unit};
use super::super::{foreign, layout};
use super::ids::Ids;
use super::names::Names;
use crate::clock::Date;
use crate::cmd::walk;
use crate::node_requests::InodeIds;

const DAY_SECONDS: u64 = 86_400;
/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// The bits of a mode that are the file's type.
const TYPE_MASK: u32 = 0o170_000;
const TYPE_DIR: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;

/// A test of one file.
#[derive(Debug)]
pub(super) enum Test {
    /// A pattern for the last name of the path.
    Name(Vec<u8>),
    /// The `S_IFMT` bits of the mode.
    Type(u32),
    Size(Bound),
    Blocks(Bound),
    /// Bounds of a time, in seconds since 1970.
    Time(TimeKind, Bound),
    /// Modified after this time: seconds and nanoseconds.
    Newer(i64, i64),
    Uid(u32),
    Gid(u32),
    Links(Bound),
    Perm(Perm),
    StripeCount(Bound),
    StripeSize(Bound),
    /// The index of the first OST.
    StripeIndex(Vec<u32>),
    /// An object on one of these OSTs.
    Ost(Vec<u32>),
    /// The layout names this OST pool; the empty name: no pool.
    Pool(String),
    Projid(u32),
    /// A foreign layout, perhaps only of this type.
    Foreign(Option<u32>),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TimeKind {
    Access,
    Change,
    Modification,
}

#[derive(Debug)]
pub(super) enum Perm {
    Exactly(u32),
    AllOf(u32),
    AnyOf(u32),
}

/// A range of values.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// More than this.
    Above(i64),
    /// At most this.
    UpTo(i64),
    /// More than the first number, and at most the second.
    Within(i64, i64),
}

impl Bound {
    /// The bound of a size or number by the rules of `lfs find`: `+N` means more than N units, `-N`
    /// at most N-1 units, and N alone more than N-1 and at most N units.
    fn new(text: &str, unit_of: impl Fn(&str) -> Option<u64>) -> Result<Bound> {
        let (sign, limit, unit) = Amount::parse(text, unit_of)?.signed(text)?;
        Ok(match sign {
            Some(Sign::Plus) => Bound::Above(limit),
            Some(Sign::Minus) => Bound::UpTo(limit - unit),
            None => Bound::Within(limit - unit, limit),
        })
    }

    /// The bound of a number without units.
    fn count(text: &str) -> Result<Bound> {
        Bound::new(text, |suffix| suffix.is_empty().then_some(1))
    }

    /// The time stamps with an age of `[+-]N`, in days if N has no unit: `+N` means at least N+1
    /// units ago, `-N` less than N units ago, and N alone from N to less than N+1 units ago.
    fn age(text: &str, now: i64) -> Result<Bound> {
        let unit_of = |suffix: &str| {
            Some(match suffix {
                "" | "d" => DAY_SECONDS,
                "s" => 1,
                "m" => 60,
                "h" => 3600,
                "w" => 7 * DAY_SECONDS,
                "y" => 365 * DAY_SECONDS,
                _ => return None,
            })
        };
        let (sign, limit, unit) = Amount::parse(text, unit_of)?.signed(text)?;
        let latest = now.saturating_sub(limit);
        Ok(match sign {
            Some(Sign::Plus) => Bound::UpTo(latest - unit),
            Some(Sign::Minus) => Bound::Above(latest),
            None => Bound::Within(latest - unit, latest),
        })
    }

    fn contains(&self, value: i64) -> bool {
        match self {
            Bound::Above(limit) => value > *limit,
            Bound::UpTo(limit) => value <= *limit,
            Bound::Within(low, high) => value > *low && value <= *high,
        }
    }
}

/// The unit of a size in bytes. A number alone counts blocks, as for find(1).
fn size_unit(suffix: &str) -> Option<u64> {
    match suffix {
        "" | "b" | "B" => Some(BLOCK_BYTES),
        "c" | "C" => Some(1),
        _ => binary_unit(suffix),
    }
}

impl Test {
    /// The test with this long name; `now` is in seconds since 1970. Checks the name before the
    /// value.
    pub(super) fn parse(name: &str, value: Option<&OsStr>, now: i64, names: &Names) -> Result<Test> {
        let value = || value.context("the test needs a value");
        let text = || value()?.to_str().context("the value is not text");
        Ok(match name {
            "name" => Test::Name(value()?.as_bytes().to_vec()),
            "newer" => {
                let file = value()?;
                let meta = std::fs::metadata(file).with_context(|| file.display().to_string())?;
                Test::Newer(meta.mtime(), meta.mtime_nsec())
            }
            "type" => Test::Type(file_type(text()?)?),
            "size" => Test::Size(Bound::new(text()?, size_unit)?),
            "blocks" => Test::Blocks(Bound::new(text()?, size_unit)?),
            "atime" => Test::Time(TimeKind::Access, Bound::age(text()?, now)?),
            "ctime" => Test::Time(TimeKind::Change, Bound::age(text()?, now)?),
            "mtime" => Test::Time(TimeKind::Modification, Bound::age(text()?, now)?),
            "uid" => Test::Uid(id(text()?, |name| names.uid(name)).context("no such user")?),
            "gid" => Test::Gid(id(text()?, |name| names.gid(name)).context("no such group")?),
            "links" => Test::Links(Bound::count(text()?)?),
            "perm" => Test::Perm(Perm::parse(text()?)?),
            "stripe-count" => Test::StripeCount(Bound::count(text()?)?),
            "stripe-size" => Test::StripeSize(Bound::new(text()?, |suffix| match suffix {
                "" => Some(1),
                _ => size_unit(suffix),
            })?),
            "stripe-index" => Test::StripeIndex(layout::ost_indices(text()?)?),
            "ost" => Test::Ost(layout::ost_indices(text()?)?),
            "pool" => Test::Pool(text()?.to_owned()),
            "foreign" => Test::Foreign(match value().ok() {
                Some(_) => Some(foreign::parse_type(text()?)?),
                None => None,
            }),
            "projid" => Test::Projid(text()?.parse().context("the value is not a number")?),
            other => bail!("the test {other} is not available (see `nacre lfs find --help`)"),
        })
    }

    /// Whether the test needs more than the name, type, layout and project of a file. It then
    /// calls `stat`, which waits for the OSTs: they know size and times of the file.
    pub(super) fn needs_attributes(&self) -> bool {
        !matches!(
            self,
            Test::Name(_)
                | Test::Type(_)
                | Test::StripeCount(_)
                | Test::StripeSize(_)
                | Test::StripeIndex(_)
                | Test::Ost(_)
                | Test::Pool(_)
                | Test::Projid(_)
                | Test::Foreign(_)
        )
    }

    /// Whether the file passes. Reads the file's attributes and layout only if the test needs them.
    pub(super) fn passes(&self, file: &mut Candidate<'_>) -> Result<bool> {
        Ok(match self {
            Test::Name(pattern) => params::matches_glob(pattern, file.name()),
            Test::Type(bits) => file.type_bits == *bits,
            Test::Size(bound) => bound.contains(file.meta()?.size() as i64),
            Test::Blocks(bound) => bound.contains((file.meta()?.blocks() * BLOCK_BYTES) as i64),
            Test::Time(TimeKind::Access, bound) => bound.contains(file.meta()?.atime()),
            Test::Time(TimeKind::Change, bound) => bound.contains(file.meta()?.ctime()),
            Test::Time(TimeKind::Modification, bound) => bound.contains(file.meta()?.mtime()),
            Test::Newer(s, ns) => {
                let meta = file.meta()?;
                (meta.mtime(), meta.mtime_nsec()) > (*s, *ns)
            }
            Test::Uid(uid) => file.meta()?.uid() == *uid,
            Test::Gid(gid) => file.meta()?.gid() == *gid,
            Test::Links(bound) => bound.contains(file.meta()?.nlink() as i64),
            Test::Perm(perm) => perm.contains(file.meta()?.mode() & 0o7777),
            Test::StripeCount(bound) => {
                let count = file.layout()?.map(|l| i64::from(layout::signed(l.stripe_count)));
                count.is_some_and(|n| bound.contains(n))
            }
            Test::StripeSize(bound) => file
                .layout()?
                .is_some_and(|l| bound.contains(l.stripe_size.into())),
            Test::StripeIndex(indices) => {
                let first = file.layout()?.and_then(|l| l.objects.first());
                first.is_some_and(|o| indices.contains(&o.l_ost_idx))
            }
            Test::Ost(indices) => file
                .layout()?
                .is_some_and(|l| l.objects.iter().any(|o| indices.contains(&o.l_ost_idx))),
            Test::Pool(name) => {
                let pool = file.layout()?.map(|l| l.pool.to_string());
                pool.unwrap_or_default() == *name
            }
            Test::Projid(projid) => file.ids()?.projid == *projid,
            Test::Foreign(kind) => {
                let found = file.foreign_type()?;
                found.is_some_and(|found| kind.is_none_or(|kind| kind == found))
            }
        })
    }
}

fn file_type(text: &str) -> Result<u32> {
    Ok(match text {
        "p" => 0o010_000,
        "c" => 0o020_000,
        "d" => TYPE_DIR,
        "b" => 0o060_000,
        "f" => TYPE_FILE,
        "l" => 0o120_000,
        "s" => 0o140_000,
        other => bail!("'{other}' is not a type: use b, c, d, f, l, p or s"),
    })
}

/// The id of a name, or the number.
fn id(text: &str, id_of_name: impl Fn(&str) -> Option<u32>) -> Option<u32> {
    id_of_name(text).or_else(|| text.parse().ok())
}

impl Perm {
    fn parse(text: &str) -> Result<Perm> {
        let digits = text.trim_start_matches(['/', '-']);
        let bits = u32::from_str_radix(digits, 8).ok().filter(|bits| *bits <= 0o7777);
        let bits =
            bits.with_context(|| format!("'{text}' is not an octal mode such as 644, -200 or /111"))?;
        Ok(match text.as_bytes().first() {
            Some(b'/') => Perm::AnyOf(bits),
            Some(b'-') => Perm::AllOf(bits),
            _ => Perm::Exactly(bits),
        })
    }

    fn contains(&self, mode: u32) -> bool {
        match self {
            Perm::Exactly(bits) => mode == *bits,
            Perm::AllOf(bits) => mode & bits == *bits,
            Perm::AnyOf(bits) => *bits == 0 || mode & bits != 0,
        }
    }
}

/// A file to test.
pub(super) struct Candidate<'a> {
    pub(super) path: &'a Path,
    /// The `S_IFMT` bits of the mode.
    type_bits: u32,
    /// The attributes, once a test has asked for them.
    meta: OnceCell<Metadata>,
    source: &'a Ids<'a>,
    /// FID and project, once a test has asked for them.
    ids: Option<InodeIds>,
    /// The layout, once a test has read it. The inner `None` means that the file has none.
    layout: Option<Option<LovLayout>>,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(path: &'a Path, source: &'a Ids<'a>) -> Result<Candidate<'a>> {
        // The type of a file never changes, so a cached one is right. Without STATX_DONT_SYNC, the
        // call may wait for the file's OSTs.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let found = statx(CWD, path, flags, StatxFlags::TYPE).with_context(|| walk::message_path(path))?;
        Ok(Candidate {
            path,
            type_bits: u32::from(found.stx_mode) & TYPE_MASK,
            meta: OnceCell::new(),
            source,
            ids: None,
            layout: None,
        })
    }

    pub(super) fn is_dir(&self) -> bool {
        self.type_bits == TYPE_DIR
    }

    /// The attributes. The call waits for the OSTs of the file's objects.
    pub(super) fn meta(&self) -> Result<&Metadata> {
        if let Some(meta) = self.meta.get() {
            return Ok(meta);
        }
        let meta = std::fs::symlink_metadata(self.path).with_context(|| walk::message_path(self.path))?;
        Ok(self.meta.get_or_init(|| meta))
    }

    /// The last name of the path; for `.` and `/` the path itself.
    fn name(&self) -> &[u8] {
        let path = self.path;
        path.file_name().unwrap_or(path.as_os_str()).as_bytes()
    }

    /// The layout of a regular file, or the default layout of a directory; of a composite layout,
    /// the last component.
    pub(super) fn layout(&mut self) -> Result<Option<&PlainLayout>> {
        Ok(self.any_layout()?.and_then(layout::plain))
    }

    /// The type of a foreign layout; `None` for other layouts.
    fn foreign_type(&mut self) -> Result<Option<u32>> {
        Ok(match self.any_layout()? {
            Some(LovLayout::Foreign(head, _)) => Some(head.lfm_type),
            _ => None,
        })
    }

    fn any_layout(&mut self) -> Result<Option<&LovLayout>> {
        if self.layout.is_none() {
            let has_layout = self.type_bits == TYPE_FILE || self.is_dir();
            let found = match has_layout {
                true => layout::read(self.path)?,
                false => None,
            };
            self.layout = Some(found);
        }
        Ok(self.layout.iter().flatten().next())
    }

    /// FID and project.
    pub(super) fn ids(&mut self) -> Result<&InodeIds> {
        if self.ids.is_none() {
            self.ids = Some(self.source.of(self.path)?);
        }
        self.ids.as_ref().context("the process of the mount sent no ids")
    }

    /// The fields of `-ls` before the path, each with a tab.
    pub(super) fn long_form(&self, names: &Names) -> Result<String> {
        let meta = self.meta()?;
        Ok(format!(
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t",
            meta.ino(),
            meta.blocks().div_ceil(2),
            file_mode(meta.mode()),
            meta.nlink(),
            names.user(meta.uid()),
            names.group(meta.gid()),
            meta.size(),
            Date::from_unix(meta.mtime()).ctime()
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_count_whole_units() {
        let size = |text| Bound::new(text, size_unit).unwrap();
        assert_eq!(size("+1M"), Bound::Above(1 << 20));
        assert_eq!(size("-2M"), Bound::UpTo(1 << 20));
        assert!(size("1M").contains(1) && size("1M").contains(1 << 20) && !size("1M").contains(0));
        assert!(size("8").contains(4096) && !size("8").contains(4097));
        assert!(size("0c").contains(0));
        assert!(Bound::new("1x", size_unit).is_err() && Bound::new("", size_unit).is_err());
    }

    #[test]
    fn ages_count_whole_units() {
        let now = 100 * DAY_SECONDS as i64;
        let days_ago = |days: f64| now - (days * DAY_SECONDS as f64) as i64;
        let age = |text| Bound::age(text, now).unwrap();
        assert!(age("+1").contains(days_ago(2.5)) && !age("+1").contains(days_ago(1.5)));
        assert!(age("-1").contains(days_ago(0.5)) && !age("-1").contains(days_ago(1.5)));
        assert!(
            age("1").contains(days_ago(1.5))
                && !age("1").contains(days_ago(2.5))
                && !age("1").contains(days_ago(0.5))
        );
        assert!(age("-10m").contains(now - 599) && !age("-10m").contains(now - 601));
    }

    #[test]
    fn tests_of_names_types_and_layouts_do_not_read_attributes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.dat");
        std::fs::write(&path, "1234").unwrap();
        let ids = Ids::new(dir.path());
        let test = |name: &str, value: &str| {
            Test::parse(name, Some(OsStr::new(value)), 0, &Names::default()).unwrap()
        };
        for (name, value) in [("name", "*.dat"), ("type", "f")] {
            let mut file = Candidate::new(&path, &ids).unwrap();
            assert!(!test(name, value).needs_attributes());
            assert!(test(name, value).passes(&mut file).unwrap(), "{name}");
            assert!(file.meta.get().is_none(), "{name}");
        }
        let mut file = Candidate::new(&path, &ids).unwrap();
        let size = test("size", "4c");
        assert!(size.needs_attributes() && size.passes(&mut file).unwrap());
        for name in [
            "ost",
            "stripe-count",
            "stripe-size",
            "stripe-index",
            "pool",
            "projid",
            "foreign",
        ] {
            assert!(!test(name, "1").needs_attributes(), "{name}");
        }
    }

    #[test]
    fn modes_are_compared_as_by_find() {
        assert!(
            Perm::parse("/222").unwrap().contains(0o644) && !Perm::parse("-222").unwrap().contains(0o644)
        );
    }
}
