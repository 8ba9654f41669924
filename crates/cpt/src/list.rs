//! Lists of numbers in the syntax of the kernel and Lustre: `0-3,8`, and with a stride, `0-15/2`.

/// Largest accepted number of a CPU, a NUMA node or a position. It limits the length of a list.
const NUMBER_MAX: usize = 8191;

/// Parses `text`. Returns the numbers in ascending order without duplicates; an empty text is an
/// empty list.
///
/// # Errors
///
/// A malformed range, or a number above 8191.
pub fn parse_list(text: &str) -> Result<Vec<usize>, String> {
    let mut numbers = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, parse_number(step)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (parse_number(first)?, parse_number(last)?),
            None => (parse_number(range)?, parse_number(range)?),
        };
        if step == 0 || first > last {
            return Err(format!("'{part}' is not a range such as 0-7 or 0-7/2"));
        }
        numbers.extend((first..=last).step_by(step));
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

fn parse_number(text: &str) -> Result<usize, String> {
    match text.trim().parse::<usize>() {
        Ok(n) if n <= NUMBER_MAX => Ok(n),
        _ => Err(format!("'{text}' is not a number from 0 to {NUMBER_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::parse_list;

    #[test]
    fn lists_of_the_kernel_are_parsed() {
        assert_eq!(parse_list("0-3,8\n").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("0-7/2, 1").unwrap(), [0, 1, 2, 4, 6]);
        assert_eq!(parse_list("").unwrap(), []);
    }

    #[test]
    fn malformed_lists_are_refused() {
        for text in ["x", "3-1", "0-4/0", "0-99999999999", "1-", "-"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }
}
