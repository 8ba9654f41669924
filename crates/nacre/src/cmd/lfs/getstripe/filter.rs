//! The components that `lfs getstripe` shows: by id, flags, extent and mirror.
//!
//! A plain layout counts as one component with id 0, for the whole file, in the first mirror.

use anyhow::{Context, Result, bail};
use wire::striping::LovLayout;
use wire::{LCME_FL_INIT, LovCompMdEntryV1};

use super::super::amount::{Amount, Sign, binary_unit};
use super::text::FLAG_NAMES;
use crate::cli::Getstripe;

/// The end of a file, on the command line.
const END_OF_FILE_WORDS: [&str; 2] = ["-1", "EOF"];

/// Tests of components; a component is shown if it passes all.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    id: Option<u32>,
    flags: Option<FlagTest>,
    start: Option<Compare>,
    end: Option<Compare>,
    mirror: Option<MirrorTest>,
}

/// Flags that a component has, and flags that it does not have.
#[derive(Debug, Default, PartialEq, Eq)]
struct FlagTest {
    set: u32,
    unset: u32,
}

#[derive(Debug, PartialEq, Eq)]
struct MirrorTest {
    /// Compares the id, not the index.
    by_id: bool,
    negated: bool,
    compare: Compare,
}

/// A comparison with a number of the command line.
#[derive(Debug, PartialEq, Eq)]
enum Compare {
    Equal(u64),
    Above(u64),
    Below(u64),
}

impl Filter {
    /// The filter of the command line.
    ///
    /// # Errors
    ///
    /// A value that is not a number or a flag.
    pub(super) fn new(args: &Getstripe) -> Result<Filter> {
        let given = |arg: &Option<Option<String>>| arg.clone().flatten();
        let id = given(&args.component_id).map(|text| {
            let id = text.parse().ok();
            id.with_context(|| format!("--component-id: '{text}' is not the id of a component"))
        });
        let position = |name: &str, arg: &Option<Option<String>>| {
            let compare = given(arg).map(|text| Compare::parse(&text));
            compare.transpose().with_context(|| name.to_owned())
        };
        let mirror = match (&args.mirror_index, &args.mirror_id) {
            (Some(text), _) => Some(MirrorTest::parse(text, false).context("--mirror-index")?),
            (None, Some(text)) => Some(MirrorTest::parse(text, true).context("--mirror-id")?),
            (None, None) => None,
        };
        Ok(Filter {
            id: id.transpose()?,
            flags: given(&args.component_flags)
                .map(|text| FlagTest::parse(&text))
                .transpose()?,
            start: position("--component-start", &args.component_start)?,
            end: position("--component-end", &args.component_end)?,
            mirror,
        })
    }

    /// Whether all components are shown.
    pub(super) fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// Removes the components that are not shown. `None` if none is left.
    pub(super) fn apply(&self, layout: LovLayout, is_dir: bool) -> Option<LovLayout> {
        match layout {
            LovLayout::Plain(_) => self.passes(&whole_file(is_dir), 1).then_some(layout),
            LovLayout::Foreign(..) => self.is_empty().then_some(layout),
            LovLayout::Composite(mut composite) => {
                let mut mirror = (0, None);
                composite.components.retain(|(entry, _)| {
                    let id = mirror_id(entry);
                    if mirror.1 != Some(id) {
                        mirror = (mirror.0 + 1, Some(id));
                    }
                    self.passes(entry, mirror.0)
                });
                (!composite.components.is_empty()).then_some(LovLayout::Composite(composite))
            }
        }
    }

    /// Whether a component of the mirror with this index is shown.
    fn passes(&self, entry: &LovCompMdEntryV1, mirror_index: u64) -> bool {
        let extent = entry.lcme_extent;
        self.id.is_none_or(|id| id == entry.lcme_id)
            && self.flags.as_ref().is_none_or(|flags| {
                entry.lcme_flags & flags.set == flags.set && entry.lcme_flags & flags.unset == 0
            })
            && self.start.as_ref().is_none_or(|at| at.holds(extent.e_start))
            && self.end.as_ref().is_none_or(|at| at.holds(extent.e_end))
            && self.mirror.as_ref().is_none_or(|test| {
                let number = match test.by_id {
                    true => u64::from(mirror_id(entry)),
                    false => mirror_index,
                };
                test.compare.holds(number) != test.negated
            })
    }
}

/// The id of a component's mirror: the upper half of the component's id.
pub(super) fn mirror_id(entry: &LovCompMdEntryV1) -> u32 {
    entry.lcme_id >> 16
}

/// A plain layout as a component.
pub(super) fn whole_file(is_dir: bool) -> LovCompMdEntryV1 {
    let mut whole = LovCompMdEntryV1 {
        lcme_flags: if is_dir { 0 } else { LCME_FL_INIT },
        ..Default::default()
    };
    whole.lcme_extent.e_end = u64::MAX;
    whole
}

impl FlagTest {
    fn parse(text: &str) -> Result<FlagTest> {
        let mut test = FlagTest::default();
        for part in text.split(',') {
            let name = part.trim_start_matches('^');
            let flag = FLAG_NAMES.iter().find(|(_, known)| *known == name);
            match flag {
                Some((flag, _)) if part.len() == name.len() => test.set |= flag,
                Some((flag, _)) => test.unset |= flag,
                // `prefer` means `prefrd` and `prefwr`.
                None if part == "prefer" => test.set |= flags_of("pref"),
                None => {
                    let known: Vec<&str> = FLAG_NAMES.iter().map(|(_, name)| *name).collect();
                    bail!(
                        "--component-flags: '{name}' is not a flag: use {}",
                        known.join(", ")
                    );
                }
            }
        }
        Ok(test)
    }
}

/// The flags with this prefix in their names.
fn flags_of(prefix: &str) -> u32 {
    let flags = FLAG_NAMES.iter().filter(|(_, name)| name.starts_with(prefix));
    flags.fold(0, |all, (flag, _)| all | flag)
}

impl MirrorTest {
    fn parse(text: &str, by_id: bool) -> Result<MirrorTest> {
        let number = text.strip_prefix('!').unwrap_or(text);
        Ok(MirrorTest {
            by_id,
            negated: number.len() < text.len(),
            compare: Compare::parse(number)?,
        })
    }
}

impl Compare {
    /// Parses `[+-]N[kMGTPE]`, or the end of a file.
    fn parse(text: &str) -> Result<Compare> {
        if END_OF_FILE_WORDS.contains(&text) {
            return Ok(Compare::Equal(u64::MAX));
        }
        let unit_of = |suffix: &str| match suffix {
            "" => Some(1),
            _ => binary_unit(suffix),
        };
        let Amount { sign, limit, .. } = Amount::parse(text, unit_of)
            .with_context(|| format!("'{text}' is not a number such as 64, +64M or -1G"))?;
        Ok(match sign {
            Some(Sign::Plus) => Compare::Above(limit),
            Some(Sign::Minus) => Compare::Below(limit),
            None => Compare::Equal(limit),
        })
    }

    fn holds(&self, value: u64) -> bool {
        match *self {
            Compare::Equal(number) => value == number,
            Compare::Above(number) => value > number,
            Compare::Below(number) => value < number,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use wire::LCME_FL_STALE;
    use wire::striping::{CompositeLayout, PlainLayout};

    fn composite() -> LovLayout {
        let component = |id, flags, start, end| {
            let mut entry = LovCompMdEntryV1 {
                lcme_id: id,
                lcme_flags: flags,
                ..Default::default()
            };
            (entry.lcme_extent.e_start, entry.lcme_extent.e_end) = (start, end);
            (entry, PlainLayout::request(1 << 20, 1, None))
        };
        LovLayout::Composite(CompositeLayout {
            head: Default::default(),
            components: vec![
                component(0x1_0001, LCME_FL_INIT, 0, 1 << 20),
                component(0x1_0002, 0, 1 << 20, u64::MAX),
                component(0x3_0003, LCME_FL_INIT | LCME_FL_STALE, 0, u64::MAX),
            ],
        })
    }

    /// The lower halves of the ids of the components that a filter shows.
    fn shown(filter: &Filter) -> Vec<u32> {
        match filter.apply(composite(), false) {
            Some(LovLayout::Composite(c)) => c.components.iter().map(|(e, _)| e.lcme_id & 0xffff).collect(),
            _ => Vec::new(),
        }
    }

    fn mirror(text: &str, by_id: bool) -> Filter {
        Filter {
            mirror: Some(MirrorTest::parse(text, by_id).unwrap()),
            ..Filter::default()
        }
    }

    #[test]
    fn components_are_selected_by_each_of_their_properties() {
        assert_eq!(shown(&Filter::default()), [1, 2, 3]);
        let id = Filter {
            id: Some(0x1_0002),
            ..Filter::default()
        };
        assert_eq!(shown(&id), [2]);
        let flags = |text: &str| {
            shown(&Filter {
                flags: Some(FlagTest::parse(text).unwrap()),
                ..Filter::default()
            })
        };
        assert_eq!(flags("init"), [1, 3]);
        assert_eq!(flags("init,^stale"), [1]);
        assert_eq!(flags("^init"), [2]);
        let extent = |start: Option<&str>, end: Option<&str>| {
            shown(&Filter {
                start: start.map(|text| Compare::parse(text).unwrap()),
                end: end.map(|text| Compare::parse(text).unwrap()),
                ..Filter::default()
            })
        };
        assert_eq!(extent(Some("0"), None), [1, 3]);
        assert_eq!(extent(Some("+4k"), None), [2]);
        assert_eq!(extent(None, Some("1M")), [1]);
        assert_eq!(extent(None, Some("-1")), [2, 3]);
        assert_eq!(extent(Some("-1M"), Some("+1M")), [3]);
    }

    #[test]
    fn mirrors_count_from_one_and_have_ids() {
        assert_eq!(shown(&mirror("1", false)), [1, 2]);
        assert_eq!(shown(&mirror("+1", false)), [3]);
        assert_eq!(shown(&mirror("3", true)), [3]);
        assert_eq!(shown(&mirror("!3", true)), [1, 2]);
        assert_eq!(shown(&mirror("-1", true)), [0u32; 0]);
    }

    #[test]
    fn plain_layout_is_one_component_of_the_first_mirror() {
        let passes = |filter: Filter| {
            let plain = LovLayout::Plain(PlainLayout::request(1 << 20, 1, None));
            filter.apply(plain, false).is_some()
        };
        assert!(passes(mirror("1", false)) && passes(mirror("0", true)));
        assert!(!passes(mirror("2", false)) && !passes(mirror("!0", true)));
        let end = |text: &str| Filter {
            end: Some(Compare::parse(text).unwrap()),
            ..Filter::default()
        };
        assert!(passes(end("EOF")) && passes(end("+1E")) && !passes(end("1M")));
    }

    #[test]
    fn wrong_values_are_named() {
        for text in ["", "x", "1X", "99999999999999999999", "16E", "+"] {
            let error = Compare::parse(text).unwrap_err().to_string();
            assert!(error.contains("is not a number"), "{error}");
        }
        let error = FlagTest::parse("init,odd").unwrap_err().to_string();
        assert!(error.contains("'odd' is not a flag: use init, stale"), "{error}");
    }
}
