//! Dates in UTC, in the formats of other tools.

const DAY_SECONDS: i64 = 86_400;
/// Days from March 1 of year 0 to the beginning of 1970.
const DAYS_BEFORE_1970: i64 = 719_468;
/// Days in 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;

/// A time in UTC.
pub(crate) struct Date {
    year: i64,
    /// From 1.
    month: u8,
    /// From 1.
    day: u8,
    /// From 0, which is Sunday.
    weekday: usize,
    /// The second of the day.
    second: i64,
}

impl Date {
    /// The date this many seconds after the beginning of 1970; negative: before.
    pub(crate) fn from_unix(seconds: i64) -> Date {
        let (days, second) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
        // With years that begin on March 1, a leap day is the last day of its year.
        let day = days + DAYS_BEFORE_1970;
        let era = day.div_euclid(ERA_DAYS);
        let day_of_era = day.rem_euclid(ERA_DAYS);
        let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        Date {
            year: era * 400 + year + i64::from(month <= 2),
            month: month as u8,
            day: day as u8,
            // 1970 began on a Thursday.
            weekday: (days + 4).rem_euclid(7) as usize,
            second,
        }
    }

    /// `MM/DD/YYYY HH:MM:SS`, the format of mdtest.
    pub(crate) fn mdtest(&self) -> String {
        format!("{:02}/{:02}/{} {}", self.month, self.day, self.year, self.time())
    }

    /// `Thu Jan  1 00:00:00 1970`, the format of ctime(3).
    pub(crate) fn ctime(&self) -> String {
        let weekday = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"][self.weekday];
        let month = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ][usize::from(self.month - 1)];
        format!("{weekday} {month} {:2} {} {}", self.day, self.time(), self.year)
    }

    fn time(&self) -> String {
        let (hour, minute, second) = (self.second / 3600, self.second / 60 % 60, self.second % 60);
        format!("{hour:02}:{minute:02}:{second:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::Date;

    #[test]
    fn date_includes_leap_days() {
        let date = |seconds| Date::from_unix(seconds).mdtest();
        assert_eq!(date(0), "01/01/1970 00:00:00");
        assert_eq!(date(951_782_399), "02/28/2000 23:59:59");
        assert_eq!(date(951_782_400), "02/29/2000 00:00:00");
        assert_eq!(date(1_795_338_000), "11/22/2026 09:00:00");
    }

    #[test]
    fn ctime_pads_the_day_with_a_space() {
        let date = |seconds| Date::from_unix(seconds).ctime();
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date(-1), "Wed Dec 31 23:59:59 1969");
    }
}
