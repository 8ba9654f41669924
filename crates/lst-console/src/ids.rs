//! Parses lists of nodes, such as `192.168.1.[2-20/2,30]@tcp`. No I/O.

use wire::Nid;

/// Maximum number of nodes in one list.
const NODES_MAX: usize = 4096;

/// The nodes of a list, in order.
///
/// # Errors
///
/// A message with the list, if it is malformed or names too many nodes.
pub(crate) fn parse(list: &str) -> Result<Vec<Nid>, String> {
    let mut texts = vec![list.to_owned()];
    // Each pass expands the first brackets of each text.
    while texts.iter().any(|text| text.contains('[')) {
        let mut expanded = Vec::new();
        for text in texts {
            expand(&text, &mut expanded)
                .ok_or_else(|| format!("'{list}' is not a list of nodes such as 10.0.0.[1-9/2]@tcp"))?;
            if expanded.len() > NODES_MAX {
                return Err(format!("'{list}' names more than {NODES_MAX} nodes"));
            }
        }
        texts = expanded;
    }
    texts
        .iter()
        .map(|text| text.parse().map_err(|e| format!("'{list}': {e}")))
        .collect()
}

/// Appends the texts that result from the first brackets of `text`, or `text` itself without
/// brackets; `None` if the brackets are malformed or give too many texts.
fn expand(text: &str, into: &mut Vec<String>) -> Option<()> {
    let Some((before, rest)) = text.split_once('[') else {
        into.push(text.to_owned());
        return Some(());
    };
    let (items, after) = rest.split_once(']')?;
    for item in items.split(',') {
        let (range, stride) = match item.split_once('/') {
            Some((range, stride)) => (range, parse_number(stride).filter(|&n| n > 0)?),
            None => (item, 1),
        };
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (parse_number(from)?, parse_number(to)?),
            None => (parse_number(range)?, parse_number(range)?),
        };
        if from > to || (to - from) as usize / stride as usize >= NODES_MAX {
            return None;
        }
        into.extend(
            (from..=to)
                .step_by(stride as usize)
                .map(|n| format!("{before}{n}{after}")),
        );
    }
    Some(())
}

fn parse_number(text: &str) -> Option<u32> {
    Some(text)
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::parse;

    fn texts(list: &str) -> Vec<String> {
        parse(list).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ranges_and_strides_expand_in_order() {
        assert_eq!(texts("10.0.0.1@tcp"), ["10.0.0.1@tcp"]);
        assert_eq!(
            texts("192.168.1.[2-6/2,9]@tcp"),
            [
                "192.168.1.2@tcp",
                "192.168.1.4@tcp",
                "192.168.1.6@tcp",
                "192.168.1.9@tcp"
            ]
        );
        assert_eq!(
            texts("10.0.[1,2].[7-8]@tcp3"),
            ["10.0.1.7@tcp3", "10.0.1.8@tcp3", "10.0.2.7@tcp3", "10.0.2.8@tcp3"]
        );
    }

    #[test]
    fn malformed_and_huge_lists_are_errors() {
        for bad in [
            "10.0.0.[]@tcp",
            "10.0.0.[1@tcp",
            "10.0.0.[3-1]@tcp",
            "10.0.0.[1-2/0]@tcp",
            "10.0.0.[1-4000000000]@tcp",
            "10.[0-60000].[0-60000].1@tcp",
            "10.0.0.[1-300]@tcp",
            "10.0.0.[+1]@tcp",
            "nowhere",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
