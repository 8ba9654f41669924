//! The command line of `nacre lfs setstripe`. Each `-E` begins a component, so the order of the
//! options matters. clap keeps no order of different options, so this module restores it from the
//! options' positions.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

#[derive(Debug, Args)]
pub(crate) struct Setstripe {
    #[command(flatten)]
    pub(crate) striping: Striping,
    /// Use the stripe count and size of this file, or of this directory's default layout
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [END, COUNT, OVERSTRIPE_COUNT, SIZE, INDEX, OST, LAYOUT, "delete"]
    )]
    pub(crate) copy: Option<PathBuf>,
    /// Delete the default layout of a directory
    #[arg(short = 'd', long)]
    pub(crate) delete: bool,
    /// Create files with a foreign layout, whose data is in another system. The type is a number,
    /// or none (the default), posix, pccrw, pccro, S3 or symlink
    #[arg(
        long,
        value_name = "TYPE",
        num_args = 0..=1,
        require_equals = true,
        requires = "xattr",
        conflicts_with_all = [END, COUNT, OVERSTRIPE_COUNT, SIZE, INDEX, OST, LAYOUT, "copy", "delete"]
    )]
    pub(crate) foreign: Option<Option<String>>,
    /// Value of the foreign layout
    #[arg(short = 'x', long, value_name = "STRING", requires = "foreign")]
    pub(crate) xattr: Option<String>,
    /// Flags of the foreign layout, a hexadecimal number
    #[arg(long, value_name = "HEX", requires = "foreign")]
    pub(crate) flags: Option<String>,
    /// Files to create, or directories
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
}

// The options of a component by their ids.
const END: &str = "component-end";
const COUNT: &str = "stripe-count";
const OVERSTRIPE_COUNT: &str = "overstripe-count";
const SIZE: &str = "stripe-size";
const INDEX: &str = "stripe-index";
const OST: &str = "ost";
const LAYOUT: &str = "layout";

/// The striping of one component, or of the whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ComponentArgs {
    /// `-E`; `None` for the whole file.
    pub(crate) end: Option<String>,
    /// The number of stripes: `-c` or `-C`.
    pub(crate) count: Option<StripeCount>,
    /// `-S`.
    pub(crate) stripe_size: Option<String>,
    /// `-i`.
    pub(crate) stripe_index: Option<i32>,
    /// `-o`.
    pub(crate) ost: Option<String>,
    /// `-L mdt`.
    pub(crate) on_mdt: bool,
}

/// A number of stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripeCount {
    pub(crate) count: i32,
    /// Whether an OST may have several stripes.
    pub(crate) overstripes: bool,
}

impl ComponentArgs {
    /// The next component, which ends at `end`. As in Lustre's lfs, it has the stripe count and
    /// size of this one unless the user gives others.
    fn next(&self, end: String) -> ComponentArgs {
        ComponentArgs {
            end: Some(end),
            count: self.count,
            stripe_size: self.stripe_size.clone(),
            ..ComponentArgs::default()
        }
    }
}

/// The components in their order; one without an end if there is no `-E`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Striping(pub(crate) Vec<ComponentArgs>);

fn option(id: &'static str, short: char, value: &'static str, help: &'static str) -> Arg {
    Arg::new(id)
        .short(short)
        .long(id)
        .value_name(value)
        .allow_negative_numbers(true)
        .action(ArgAction::Append)
        .help(help)
}

impl Args for Striping {
    fn augment_args(command: Command) -> Command {
        let number = clap::value_parser!(i32);
        command.args([
            option(
                END,
                'E',
                "END",
                "End of a component: bytes with the suffixes K, M, G, T or P, or -1 for the end of \
                 the file. Each -E begins a component where the one before ends. The options after \
                 it are for this component; it has the stripe count and size of the one before \
                 unless others follow",
            ),
            option(
                COUNT,
                'c',
                "STRIPE_COUNT",
                "Number of OSTs to stripe over; -1 for all",
            )
            .value_parser(number),
            option(
                OVERSTRIPE_COUNT,
                'C',
                "OVERSTRIPE_COUNT",
                "Number of stripes, of which an OST may have several (overstriping); -1 for one on \
                 every OST, to -32 for 32 on every OST",
            )
            .value_parser(number),
            option(
                SIZE,
                'S',
                "STRIPE_SIZE",
                "Bytes on one OST before the next; the suffixes K, M and G are accepted",
            ),
            option(INDEX, 'i', "STRIPE_INDEX", "First OST; -1 for any").value_parser(number),
            option(
                OST,
                'o',
                "OST",
                "One stripe on each of these OSTs, by index, range 0-3 or name, in this order; an \
                 OST listed several times gets several stripes",
            )
            .visible_alias("ost-list"),
            option(
                LAYOUT,
                'L',
                "PATTERN",
                "Where the component is: mdt for the first component with an end, or raid0, the \
                 default, for stripes on OSTs",
            )
            .value_parser(["mdt", "raid0"]),
        ])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Striping::augment_args(command)
    }
}

/// One option with its value.
enum Given {
    End(String),
    Count(StripeCount),
    Size(String),
    Index(i32),
    Ost(String),
    Layout(String),
}

/// The options of one kind with their positions.
fn given<T: Clone + Send + Sync + 'static>(
    matches: &ArgMatches,
    id: &str,
    to_given: impl Fn(T) -> Given,
) -> Vec<(usize, Given)> {
    let positions = matches.indices_of(id).into_iter().flatten();
    let values = matches.get_many::<T>(id).into_iter().flatten().cloned();
    positions.zip(values.map(to_given)).collect()
}

impl FromArgMatches for Striping {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Striping, Error> {
        let count = |overstripes| move |count| Given::Count(StripeCount { count, overstripes });
        let mut all: Vec<(usize, Given)> = [
            given(matches, END, Given::End),
            given(matches, COUNT, count(false)),
            given(matches, OVERSTRIPE_COUNT, count(true)),
            given(matches, SIZE, Given::Size),
            given(matches, INDEX, Given::Index),
            given(matches, OST, Given::Ost),
            given(matches, LAYOUT, Given::Layout),
        ]
        .into_iter()
        .flatten()
        .collect();
        all.sort_by_key(|(position, _)| *position);
        let mut done = Vec::new();
        let mut component = ComponentArgs::default();
        // The kinds of options that the user has given for this component.
        let mut seen: Vec<&str> = Vec::new();
        for (_, option) in all {
            let name = match &option {
                Given::End(_) if component.end.is_some() => {
                    seen.clear();
                    "-E"
                }
                Given::End(_) => "-E",
                Given::Count(_) => "-c or -C",
                Given::Size(_) => "-S",
                Given::Index(_) | Given::Ost(_) => "-i or -o",
                Given::Layout(_) => "-L",
            };
            if seen.contains(&name) {
                let message = format!("{name} is given more than once for a component\n");
                return Err(Error::raw(ErrorKind::ArgumentConflict, message));
            }
            seen.push(name);
            match option {
                Given::End(end) if component.end.is_some() => {
                    let next = component.next(end);
                    done.push(std::mem::replace(&mut component, next));
                }
                Given::End(end) => component.end = Some(end),
                Given::Count(count) => component.count = Some(count),
                Given::Size(size) => component.stripe_size = Some(size),
                Given::Index(index) => component.stripe_index = Some(index),
                Given::Ost(ost) => component.ost = Some(ost),
                Given::Layout(pattern) => component.on_mdt = pattern == "mdt",
            }
        }
        done.push(component);
        Ok(Striping(done))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Striping::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{ComponentArgs, Setstripe, StripeCount};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        setstripe: Setstripe,
    }

    fn parse(line: &str) -> Result<Vec<ComponentArgs>, clap::Error> {
        let words = std::iter::once("setstripe").chain(line.split(' '));
        Ok(Line::try_parse_from(words)?.setstripe.striping.0)
    }

    fn component(end: Option<&str>, count: Option<(i32, bool)>, size: Option<&str>) -> ComponentArgs {
        ComponentArgs {
            end: end.map(Into::into),
            count: count.map(|(count, overstripes)| StripeCount { count, overstripes }),
            stripe_size: size.map(Into::into),
            ..ComponentArgs::default()
        }
    }

    #[test]
    fn options_belong_to_the_component_before_them() {
        let all = parse("-E 1M -c 1 -E 64M -c 2 -S 2M -E -1 -c -1 f").unwrap();
        let expected = [
            component(Some("1M"), Some((1, false)), None),
            component(Some("64M"), Some((2, false)), Some("2M")),
            component(Some("-1"), Some((-1, false)), Some("2M")),
        ];
        assert_eq!(all, expected);
        assert_eq!(
            parse("-c 2 f").unwrap(),
            [component(None, Some((2, false)), None)]
        );
        assert_eq!(parse("f").unwrap(), [ComponentArgs::default()]);
    }

    #[test]
    fn next_component_inherits_count_and_size_only() {
        let all = parse("-E1M -C 4 -S 1M -i 2 -E eof f").unwrap();
        assert_eq!(all[1], component(Some("eof"), Some((4, true)), Some("1M")));
        assert_eq!(all[0].stripe_index, Some(2));
    }

    #[test]
    fn first_component_may_be_on_the_mdt() {
        let all = parse("-E 1M -L mdt -E -1 -L raid0 -c 2 f").unwrap();
        let on_mdt = ComponentArgs {
            on_mdt: true,
            ..component(Some("1M"), None, None)
        };
        assert_eq!(all, [on_mdt, component(Some("-1"), Some((2, false)), None)]);
        parse("-E 1M -L parity f").unwrap_err();
    }

    #[test]
    fn option_given_twice_for_a_component_is_refused() {
        for line in [
            "-c 1 -c 2 f",
            "-c 1 -C 2 f",
            "-E 1M -S 1M -S 2M f",
            "-i 1 -o 1 f",
            "-L mdt -L mdt f",
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains("more than once"), "{line}: {error}");
        }
        for line in ["-E 1M --copy g f", "--foreign -x v -E 1M f", "-c 1 --copy g f"] {
            parse(line).unwrap_err();
        }
    }
}
